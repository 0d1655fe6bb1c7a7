"""Makes nodes of the library's operation for recurrent layers, in OpenVINO's graphs.

All functions raise LibraryMissing, and RuntimeError if sizes do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from openvino import opset13 as ops

from dragoman.kernels.graph import made

Floats = npt.NDArray[np.float32]


class Kept(NamedTuple):
    """The table that blocks keep, and the tables by which a step's rows find their blocks.

    `table`: u8 [blocks, ..., bytes], zeros where nothing was written. `tables`: past_lens, subsequence_begins,
    block_indices and block_indices_begins, as `ForwardBatch` has them.
    """

    table: Any
    tables: Sequence[Any]


class HeadScan(NamedTuple):
    """States by heads: f32 [heads, key size, value size] in a block, see native/recurrence.hpp.

    `corrects`: as the gated delta rule does, else as Mamba 2. `rates`, `biases`, `skips`: f32 [heads]; None = no skips.
    """

    corrects: bool
    num_key_heads: int
    num_heads: int
    key_size: int
    value_size: int
    rates: Floats
    biases: Floats
    skips: Floats | None = None
    step_limits: tuple[float, float] = (0.0, float("inf"))


def convolution(x: Any, taps: Floats, bias: Floats | None, kept: Kept, num_slots: int, *, has_silu: bool) -> Any:
    """Each channel of a token's and its predecessors' rows times its taps, the last of which is the token's own.

    Shapes: x f32 [T, 1, width], taps [width, length], bias [width] -> [T, 1, width]; a block keeps f32 [slots, width].
    """
    width, length = taps.shape
    constants = [taps.T] if bias is None else [taps.T, bias]
    return _recurrence("convolution", [width, length, num_slots, has_silu, bias is not None], [x], kept, constants)


def heads(rows: Sequence[Any], kept: Kept, scan: HeadScan) -> Any:
    """The output of heads that read their states, f32 [T, heads, value size]; the states are updated.

    `rows`: the mixed input f32 [T, ..., width], steps f32 [T, ..., heads], and of a scan that corrects, parts like the
    steps.
    """
    sizes = [scan.num_key_heads, scan.num_heads, scan.key_size, scan.value_size]
    limits = [repr(min(limit, _LARGEST)) for limit in scan.step_limits]
    constants = [scan.rates, scan.biases, *([] if scan.skips is None else [scan.skips])]
    return _recurrence("heads", [scan.corrects, *sizes, *limits, scan.skips is not None], rows, kept, constants)


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
