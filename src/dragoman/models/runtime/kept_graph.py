"""Keeps compiled graphs in files and maps them again, so that a model is compiled once and not at every start.

The plugin's file forgets the attention's head sizes, so an extension supplies them. Files are mapped: several servers
share their pages. Their bytes are checked (`seal`). Called by the loader, once per start, on any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.files.ownership import open_own
from dragoman.files.unfinished import scratch_directory
from dragoman.models.blocks.attention import paged_attention
from dragoman.models.blocks.step import BlockTables, cache_parameter
from dragoman.models.facts import AttentionFacts, ModelFacts
from dragoman.models.runtime.kept_bound import put_kept, reason, warn_not_kept
from dragoman.models.runtime.seal import SealedBytes

logger = logging.getLogger(__name__)

_ATTENTION = ov.DiscreteTypeInfo("PagedAttentionExtension", "extension")
_HEADER_LIMIT = 4096  # bytes within which OpenVINO's line about its version ends


def compile_and_keep(
    core: Any, graph: Any, properties: dict[str, Any], target: Path, facts: ModelFacts
) -> tuple[Any, Any]:
    """The compiled graph, kept in `target`, and the mapping of that file; without a mapping if it cannot be kept.

    The compiled graph is mapped at once, so that its stored weights are pages of a file. Once the kernels have packed
    them the system can take the pages back.
    """
    try:
        with scratch_directory(target.parent) as unfinished:
            compiled = core.compile_model(graph, "CPU", {**properties, "CACHE_DIR": str(unfinished)})
            is_kept = _move_written(unfinished, target)
    except (OSError, RuntimeError) as error:
        warn_not_kept(target, error)
        return core.compile_model(graph, "CPU", properties), None
    return (map_kept(core, target, properties, facts, is_new=True) if is_kept else None) or (compiled, None)


def _move_written(unfinished: Path, target: Path) -> bool:
    written = next(unfinished.glob("*.blob"), None)  # the plugin chooses the name
    if written is None or not written.stat().st_size:  # it does not tell when it cannot write
        warn_not_kept(target, "it could not be written, is the disk full?")
        return False
    try:
        put_kept(written, target)
        return True
    except OSError as error:
        warn_not_kept(target, error)
        return False


def map_kept(
    core: Any,
    path: Path,
    properties: dict[str, Any],
    facts: ModelFacts,
    *,
    is_new: bool = False,
    progress: Callable[[float], None] = lambda fraction: None,
) -> tuple[Any, Any] | None:
    """The compiled graph of `path` and the mapping that must live as long as the graph; None if it cannot be used.

    Every byte has been checked when it returns, unless this process has just sealed them (`is_new`). The graph's
    description is at the file's ends, which are checked first: the runtime trusts what it reads. Checksums do not
    prove the author, so a file that another user can have written is not used. `progress` gets the fraction that has
    been checked.
    """
    try:
        with open_own(path) as file:  # mapped for copying: the runtime takes no read-only memory; nothing writes
            mapping = np.memmap(file, dtype=np.uint8, mode="c")
        with SealedBytes(mapping) as sealed:
            if not is_new:
                sealed.begin_check()
            graph = ov.Tensor(sealed.contents[_header_size(mapping) :], shared_memory=True)
            if facts.attention_layers:
                core.add_extension(_extension(_ATTENTION, _attention_placeholder, facts.attention_layers.values()))
            compiled = core.import_model(graph, "CPU", properties)
            sealed.finish_check(progress)
            return compiled, mapping
    except (OSError, RuntimeError, ValueError) as error:
        logger.warning("the kept graph %s cannot be used and is made anew: %s", path, reason(error))
        return None


def _header_size(mapping: Any) -> int:
    """Bytes of OpenVINO's line about its version. Raises: ValueError if there is none."""
    return int(mapping[:_HEADER_LIMIT].tobytes().index(b"\n")) + 1


def _extension(kind: Any, make: Callable[[Any], Any], shapes: Iterable[Any]) -> Any:
    """An extension that makes an operation's nodes, in the order of the layers, when the runtime reads a graph."""
    shapes = list(shapes)
    left = cycle(shapes)

    class Operation(ov.Op):  # type: ignore[misc]  # the package has no type information
        @staticmethod
        def get_type_info() -> Any:
            return kind

        def __new__(cls) -> Any:
            return make(next(left))

    extension = ov.OpExtension(Operation)
    left = cycle(shapes)
    return extension


def _attention_placeholder(facts: AttentionFacts) -> Any:
    def parameter(dtype: ov.Type, *dimensions: int) -> Any:
        return ops.parameter(ov.PartialShape(list(dimensions)), dtype).output(0)

    widths = (facts.query_width, facts.key_width, facts.value_width)
    qkv = [parameter(ov.Type.f32, -1, width) for width in widths]
    past_lens, begins, indices, indices_begins = (parameter(ov.Type.i32, -1) for _ in range(4))
    caches = (cache_parameter("key_cache"), cache_parameter("value_cache"))
    tables = BlockTables(past_lens, indices, indices_begins)
    return paged_attention(qkv, caches, tables, (begins, parameter(ov.Type.i32)), facts).get_node()
