"""Operations of the library of kernels in OpenVINO's graphs.

Does: make nodes, and runtimes that know them. Does not: pack what they read. Called by the loader and by builders of graphs,
on any thread.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import openvino as ov
from openvino.utils.node_factory import NodeFactory

from dragoman.kernels.library import Layout, library


def runtime(*, has_operations: bool) -> Any:
    """A runtime; one that has the operations also reads kept graphs with them. Raises: LibraryMissing."""
    core = ov.Core()
    if has_operations:
        core.add_extension(str(library().path))
    return core


def product(rows: Any, packed: Any, layout: Layout, bias: Any = None) -> Any:
    """Rows f32 [..., columns] times a packed matrix, with a bias if there is one: f32 [..., outputs].

    Raises: LibraryMissing; RuntimeError if sizes do not fit.
    """
    return _node("Product", [rows, packed] if bias is None else [rows, packed, bias], layout)


def table_rows(indices: Any, packed: Any, layout: Layout) -> Any:
    """Rows of a packed matrix by integers [...]: f32 [..., columns]. Raises: as `product`."""
    return _node("Rows", [indices, packed], layout)


def _node(operation: str, inputs: list[Any], layout: Layout) -> Any:
    attributes = {
        "format": layout.format,
        "group": layout.group,
        "outputs": layout.outputs,
        "columns": layout.columns,
    }
    return _factory(str(library().path)).create(operation, inputs, attributes).output(0)


@cache
def _factory(path: str) -> Any:
    factory = NodeFactory()
    factory.add_extension(path)
    return factory
