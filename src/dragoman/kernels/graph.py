"""Makes nodes of OpenVINO's graphs with the operations of the library of kernels, recurrent layers' among them.

All functions raise LibraryMissing, and RuntimeError if sizes do not fit. Called by builders of graphs, on any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as ops
from openvino.utils.node_factory import NodeFactory

from dragoman.kernels.native import Layout, Memory, library

BLOCK_SLOTS = 32  # tokens of a block of keys or values


class PlacedMatrix(NamedTuple):
    """A packed matrix, or several behind each other. `bias`: a node f32 [outputs], None if there is none."""

    memory: Memory
    layout: Layout
    bias: Any = None

    @property
    def attribute(self) -> str:
        """The matrix as native/on_matrices.hpp reads it."""
        layout = self.layout
        where = f"{self.memory.number} {self.memory.offset}"
        return f"{layout.format} {layout.group} {layout.outputs} {layout.columns} {where}"


def runtime(*, has_operations: bool) -> Any:
    core = ov.Core()
    if has_operations:
        core.add_extension(str(library().path))
    return core


def products(rows: Any, matrices: Sequence[PlacedMatrix]) -> list[Any]:
    """Rows f32 [..., columns] times each matrix, with its bias if all have one: of each f32 [..., outputs]."""
    return _node("Products", rows, matrices).outputs()  # type: ignore[no-any-return]


def gated_mlp(rows: Any, gate: PlacedMatrix, up: PlacedMatrix, down: PlacedMatrix, activation: str) -> Any:
    """down(activation(gate rows) * up rows), f32 [..., outputs of down]; all have a bias, or none."""
    return _node("GatedMlp", rows, [gate, up, down], activation=activation).output(0)


def experts(
    rows: Any, chosen: Any, shares: Any, matrices: Sequence[PlacedMatrix], num_experts: int, activation: str
) -> Any:
    """The sum of the chosen experts' MLPs, each times its share, f32 [..., outputs of down].

    `matrices`: gate, up and down, or up and down of experts without a gate. Each is those of all experts behind each
    other, with a bias [experts, outputs] or none. Shapes: chosen, integers, and shares, f32: [rows, active].
    """
    attributes: dict[str, str | int] = {"experts": num_experts, "activation": activation}
    return _node("Experts", rows, matrices, (chosen, shares), **attributes).output(0)


def table_rows(indices: Any, table: PlacedMatrix) -> Any:
    """Rows of a packed matrix by integers [...]: f32 [..., columns]."""
    return _node("Rows", indices, [table]).output(0)


def normed_products(rows: Any, matrices: str, how: str, numbers: Any, angles: Sequence[Any]) -> list[Any]:
    """Products of normed rows f32 [T, 1, columns], their heads normed and turned: of each f32 [T, outputs].

    `matrices`: the attribute of `products`; the others as native/layer_operations.cpp has them.
    """
    attributes = {"matrices": matrices, "how": how}
    return made("NormedProducts", [rows, numbers, *angles], attributes).outputs()  # type: ignore[no-any-return]


def output_and_mlp(rows: Any, residual: Any, matrices: str, how: str, activation: str, numbers: Any) -> Any:
    """The part of a layer behind attention, in the residual's shape f32 [..., hidden]; see `normed_products`."""
    attributes = {"matrices": matrices, "how": how, "activation": activation}
    return made("OutputAndMlp", [rows, residual, numbers], attributes).output(0)


def layers(
    step: Sequence[Any],
    caches: Sequence[Any],
    tables: Sequence[Any],
    angles: Sequence[Any],
    others: Sequence[Any],
    matrices: str,
    how: str,
) -> Any:
    """The rows behind layers that follow each other, f32 [T or R, 1, hidden]; see native/layers_operation.cpp.

    `step`: rows, numbers, positions and subsequence_begins; `others`: the rows that are kept, types of tokens.
    """
    return made("Layers", [*step, *caches, *tables, *angles, *others], {"matrices": matrices, "how": how}).output(0)


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """The layout of a layer's attention, and its caches' type: f32, bf16, f16 or u8. `window`, `cap`: 0 = none."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    value_size: int
    cache_type: str
    scale: float
    window: int = 0
    cap: float = 0.0

    @property
    def block_shapes(self) -> tuple[list[int], list[int]]:
        """The shapes of a block of keys and of one of values, whose elements are bytes."""
        widths = library().block_bytes(self.cache_type, self.head_size, self.value_size)
        return [self.num_kv_heads, widths[0]], [self.num_kv_heads, widths[1]]


def attention(
    qkv: Sequence[Any],
    caches: tuple[Any, Any],
    positions: Any,
    tables: Sequence[Any],
    layout: AttentionLayout,
    sinks: Any = None,
    slopes: Any = None,
    token_types: Any = None,
) -> Any:
    """The output of the heads, f32 [T, heads * value size]; the step's keys and values are written into the caches.

    Shapes: q, k, v f32 [T, heads * size]; caches u8 [blocks, *block shape]; positions i64 [T]; `tables`: past_lens,
    subsequence_begins, block_indices, block_indices_begins, as in `ForwardBatch`; sinks, slopes f32 [heads];
    token_types i32 [T].
    """
    heads = [layout.num_heads, layout.num_kv_heads, layout.head_size, layout.value_size]
    numbers = [np.asarray(each, np.float32).ravel() for each in (sinks, slopes) if each is not None]
    others = [token_types] if token_types is not None else []
    flags = [sinks is not None, slopes is not None, bool(others)]
    how = [*heads, repr(layout.scale), repr(layout.cap), layout.window, layout.cache_type, *map(int, flags)]
    constant = ops.constant(np.concatenate([np.zeros(0, np.float32), *numbers]))
    inputs = [*qkv, *caches, positions, *tables, constant, *others]
    return made("Attention", inputs, {"how": " ".join(map(str, how))}).output(0)


def _node(
    operation: str, rows: Any, matrices: Sequence[PlacedMatrix], others: Sequence[Any] = (), **attributes: str | int
) -> Any:
    biases = [matrix.bias for matrix in matrices if matrix.bias is not None]
    layouts = ",".join(matrix.attribute for matrix in matrices)
    inputs = [rows, *others, *biases]
    return made(operation, inputs, {"matrices": layouts, **attributes})


def made(operation: str, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
    return _factory(str(library().path)).create(operation, inputs, attributes)


@cache
def _factory(path: str) -> Any:
    factory = NodeFactory()
    factory.add_extension(path)
    return factory


Floats = npt.NDArray[np.float32]


class Kept(NamedTuple):
    """The table that blocks keep, and the tables by which a step's rows find their blocks.

    `table`: u8 [blocks, ..., bytes], zeros where nothing was written. `tables`: past_lens, subsequence_begins,
    block_indices and block_indices_begins, as `ForwardBatch` has them.
    """

    table: Any
    tables: Sequence[Any]


def convolution(x: Any, taps: Floats, bias: Floats | None, kept: Kept, num_slots: int, *, has_silu: bool) -> Any:
    """Each channel of a token's and its predecessors' rows times its taps, the last of which is the token's own.

    Shapes: x f32 [T, 1, width], taps [width, length], bias [width] -> [T, 1, width]; a block keeps f32 [slots, width].
    """
    width, length = taps.shape
    constants = [taps.T] if bias is None else [taps.T, bias]
    return _recurrence("convolution", [width, length, num_slots, has_silu, bias is not None], [x], kept, constants)


def heads(
    rows: Sequence[Any],
    kept: Kept,
    sizes: Sequence[int],
    numbers: Sequence[Floats],
    step_limits: tuple[float, float] = (0.0, float("inf")),
    *,
    corrects: bool,
) -> Any:
    """The output of heads that read their states, f32 [T, heads, value size]; the states are updated.

    `rows`: the mixed input f32 [T, ..., width], steps f32 [T, ..., heads], and with `corrects`, parts like the steps.
    `sizes`: the numbers of heads of keys and of all, the sizes of a key and of a value; a block keeps f32 [heads, key
    size, value size]. `numbers`: rates, biases of steps, and skips if there are some, f32 [heads] each. `corrects`: as the
    gated delta rule does, else as Mamba 2; see native/recurrence.hpp.
    """
    limits = [repr(min(limit, _LARGEST)) for limit in step_limits]
    return _recurrence("heads", [corrects, *sizes, *limits, len(numbers) > 2], rows, kept, numbers)


def channels(rows: Sequence[Any], kept: Kept, rates: Floats, biases: Floats, skips: Floats) -> Any:
    """The output of channels that read their states, f32 [T, 1, width]; a block keeps f32 [numbers, width].

    `rows`: x and steps f32 [T, ..., width], keys and queries f32 [T, ..., numbers]. Shapes: rates [numbers, width],
    biases and skips [width].
    """
    num_numbers, width = rates.shape
    return _recurrence("channels", [width, num_numbers], rows, kept, [rates, biases, skips])


def gates(rows: Sequence[Any], kept: Kept, rates: Floats) -> Any:
    """The states of gated linear recurrences, f32 [T, 1, width]; a block keeps f32 [1, width].

    `rows`: x, gates of the input, and gates of the state, each f32 [T, ..., width]. Shapes: rates [width].
    """
    return _recurrence("gates", [rates.size], rows, kept, [rates])


_LARGEST = 3e38  # the operation reads no infinity


def _recurrence(kind: str, how: Sequence[Any], rows: Sequence[Any], kept: Kept, constants: Sequence[Floats]) -> Any:
    words = [kind, *(int(word) if isinstance(word, bool) else word for word in how)]
    numbers = np.concatenate([np.ascontiguousarray(each, np.float32).ravel() for each in constants])
    inputs = [*rows, kept.table, *kept.tables, ops.constant(numbers)]
    return made("Recurrence", inputs, {"how": " ".join(map(str, words))}).output(0)
