"""Operations of the library of kernels in OpenVINO's graphs.

Does: make nodes, and runtimes that know them. Does not: pack what they read. Called by the loader and by builders of graphs,
on any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import openvino as ov
from openvino.utils.node_factory import NodeFactory

from dragoman.kernels.memory import Memory
from dragoman.kernels.native import Layout, library


class PlacedMatrix(NamedTuple):
    """A packed matrix, or several behind each other. `bias`: a node f32 [outputs], None if there is none."""

    memory: Memory
    layout: Layout
    bias: Any = None

    @property
    def attribute(self) -> str:
        """The operations' words for it; see native/on_matrices.hpp."""
        layout = self.layout
        where = f"{self.memory.number} {self.memory.offset}"
        return f"{layout.format} {layout.group} {layout.outputs} {layout.columns} {where}"


def runtime(*, has_operations: bool) -> Any:
    """A runtime, with the operations or without. Raises: LibraryMissing."""
    core = ov.Core()
    if has_operations:
        core.add_extension(str(library().path))
    return core


def products(rows: Any, matrices: Sequence[PlacedMatrix]) -> list[Any]:
    """Rows f32 [..., columns] times each matrix, with its bias if all have one: of each f32 [..., outputs].

    Raises: LibraryMissing; RuntimeError if sizes do not fit.
    """
    return _node("Products", rows, matrices).outputs()  # type: ignore[no-any-return]


def gated_mlp(rows: Any, gate: PlacedMatrix, up: PlacedMatrix, down: PlacedMatrix, activation: str) -> Any:
    """down(activation(gate rows) * up rows), f32 [..., outputs of down]; all have a bias, or none. Raises: as `products`."""
    return _node("GatedMlp", rows, [gate, up, down], activation=activation).output(0)


def experts(
    rows: Any, chosen: Any, shares: Any, matrices: Sequence[PlacedMatrix], num_experts: int, activation: str
) -> Any:
    """The sum of the chosen experts' gated MLPs, each times its share, f32 [..., outputs of down].

    `matrices`: gate, up and down, each those of all experts behind each other, with a bias [experts, outputs] or none.
    Shapes: chosen, integers, and shares, f32: [rows, active]. Raises: as `products`.
    """
    attributes: dict[str, str | int] = {"experts": num_experts, "activation": activation}
    return _node("Experts", rows, matrices, (chosen, shares), **attributes).output(0)


def table_rows(indices: Any, table: PlacedMatrix) -> Any:
    """Rows of a packed matrix by integers [...]: f32 [..., columns]. Raises: as `products`."""
    return _node("Rows", indices, [table]).output(0)


def normed_products(rows: Any, matrices: str, how: str, numbers: Any, angles: Sequence[Any]) -> list[Any]:
    """Products of normed rows f32 [T, 1, columns], their heads normed and turned: of each f32 [T, outputs].

    `matrices`: the attribute of `products`; the others as native/layer_operations.cpp has them. Raises: as `products`.
    """
    attributes = {"matrices": matrices, "how": how}
    return _made("NormedProducts", [rows, numbers, *angles], attributes).outputs()  # type: ignore[no-any-return]


def output_and_mlp(rows: Any, residual: Any, matrices: str, how: str, activation: str, numbers: Any) -> Any:
    """What a layer computes behind attention, in the residual's shape f32 [..., hidden]; see `normed_products`."""
    attributes = {"matrices": matrices, "how": how, "activation": activation}
    return _made("OutputAndMlp", [rows, residual, numbers], attributes).output(0)


def _node(
    operation: str, rows: Any, matrices: Sequence[PlacedMatrix], others: Sequence[Any] = (), **attributes: str | int
) -> Any:
    biases = [matrix.bias for matrix in matrices if matrix.bias is not None]
    layouts = ",".join(matrix.attribute for matrix in matrices)
    inputs = [rows, *others, *biases]
    return _made(operation, inputs, {"matrices": layouts, **attributes})


def _made(operation: str, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
    return _factory(str(library().path)).create(operation, inputs, attributes)


@cache
def _factory(path: str) -> Any:
    factory = NodeFactory()
    factory.add_extension(path)
    return factory
