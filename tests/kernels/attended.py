"""Attention in plain numpy, and the library's in a graph, for tests that compare the two."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as ops

from dragoman.kernels.graph import BLOCK_SLOTS, AttentionLayout, attention, runtime

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Kind:
    """A layout, and what attention has beside it."""

    layout: AttentionLayout
    has_sinks: bool = False
    has_slopes: bool = False
    has_types: bool = False

    @property
    def sinks(self) -> Floats | None:
        heads = self.layout.num_heads
        return np.linspace(-1, 2, heads, dtype=np.float32) if self.has_sinks else None

    @property
    def slopes(self) -> Floats | None:
        heads = self.layout.num_heads
        return np.linspace(0.01, 0.2, heads, dtype=np.float32) if self.has_slopes else None


class Row(NamedTuple):
    """Tokens of a sequence in a step, from position `begin` on; `passed`: whole blocks that its table leaves out."""

    sequence: int
    begin: int
    end: int
    passed: int = 0


@dataclass
class Texts:
    """Sequences of tokens: what each has of queries, keys and values, its blocks, and which tokens see their neighbours.

    Shapes: q [tokens, heads, size], k and v [tokens, kv heads, size] for each sequence.
    """

    q: list[Floats]
    k: list[Floats]
    v: list[Floats]
    blocks: list[list[int]]
    types: list[npt.NDArray[np.int32]] = field(default_factory=list)


@cache
def _compiled(kind: Kind) -> Any:
    layout = kind.layout
    widths = [layout.num_heads * layout.head_size, layout.num_kv_heads * layout.head_size]
    widths.append(layout.num_kv_heads * layout.value_size)
    qkv = [ops.parameter([-1, width], np.float32) for width in widths]
    caches = [ops.parameter([-1, *shape], np.uint8) for shape in layout.block_shapes]
    positions = ops.parameter([-1], np.int64)
    tables = [ops.parameter([-1], np.int32) for _ in range(4)]
    types = [ops.parameter([-1], np.int32)] if kind.has_types else []
    outputs = [[node.output(0) for node in nodes] for nodes in (qkv, caches, tables, types)]
    node = attention(
        outputs[0],
        (outputs[1][0], outputs[1][1]),
        positions.output(0),
        outputs[2],
        layout,
        kind.sinks,
        kind.slopes,
        outputs[3][0] if types else None,
    )
    model = ov.Model([node], [*qkv, *caches, positions, *tables, *types])
    return runtime(has_operations=True).compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


class Attending:
    """The library's attention over caches that hold rubbish at first."""

    def __init__(self, kind: Kind, num_blocks: int) -> None:
        self.kind = kind
        self.caches = [np.full((num_blocks, *shape), 255, np.uint8) for shape in kind.layout.block_shapes]
        self._request = _compiled(kind).create_infer_request()

    def step(self, texts: Texts, rows: list[Row]) -> list[Floats]:
        """What the tokens of each row read, [tokens, heads, value size]."""
        inputs: list[Any] = [
            np.concatenate([numbers[row.sequence][row.begin : row.end] for row in rows]).reshape(
                sum(row.end - row.begin for row in rows), -1
            )
            for numbers in (texts.q, texts.k, texts.v)
        ]
        tables = [texts.blocks[row.sequence][row.passed : -(-row.end // BLOCK_SLOTS)] for row in rows]
        lengths = [row.end - row.begin for row in rows]
        inputs += [ov.Tensor(each, shared_memory=True) for each in self.caches]
        inputs.append(np.concatenate([np.arange(row.begin, row.end) for row in rows]))
        inputs.append(np.array([row.begin - row.passed * BLOCK_SLOTS for row in rows], np.int32))
        inputs.append(np.cumsum([0, *lengths], dtype=np.int32))
        inputs.append(np.concatenate(tables).astype(np.int32))
        inputs.append(np.cumsum([0, *map(len, tables)], dtype=np.int32))
        if self.kind.has_types:
            inputs.append(np.concatenate([texts.types[row.sequence][row.begin : row.end] for row in rows]))
        for index, values in enumerate(inputs):
            tensor = values if isinstance(values, ov.Tensor) else ov.Tensor(np.ascontiguousarray(values))
            self._request.set_input_tensor(index, tensor)
        self._request.infer()
        layout = self.kind.layout
        results = self._request.get_output_tensor(0).data.copy()
        return np.split(results.reshape(-1, layout.num_heads, layout.value_size), np.cumsum(lengths)[:-1])


def stored(numbers: Floats, cache_type: str) -> npt.NDArray[np.float64]:
    """What a cache holds of keys or values, [..., size]."""
    if cache_type == "u8":
        low, high = numbers.min(-1, keepdims=True).astype(np.float64), numbers.max(-1, keepdims=True).astype(np.float64)
        scale = np.where(high > low, (high - low) / 255, 1)
        decoded: npt.NDArray[np.float64] = np.round((numbers - low) / scale) * scale + low
        return decoded
    kinds = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
    kept: npt.NDArray[np.float64] = numbers.astype(kinds[cache_type]).astype(np.float64)
    return kept


def stored_keys(keys: Floats, cache_type: str) -> npt.NDArray[np.float64]:
    """What a cache holds of a sequence's keys, [tokens, heads, size]: of u8 how they differ from their block's first one."""
    if cache_type != "u8":
        return stored(keys, cache_type)
    size = keys.shape[-1]
    part = size & -size  # numbers that are spread over each other
    matrix = np.ones((1, 1))
    while len(matrix) < part:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    spread = (keys.reshape(*keys.shape[:-1], -1, part) @ matrix / part).reshape(keys.shape)
    firsts = spread[::BLOCK_SLOTS].astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    firsts = firsts.repeat(BLOCK_SLOTS, 0)[: len(keys)]
    kept = stored((spread - firsts).astype(np.float32), "u8") + firsts
    restored: npt.NDArray[np.float64] = (kept.reshape(*keys.shape[:-1], -1, part) @ matrix).reshape(keys.shape)
    return restored


def expected(kind: Kind, texts: Texts, row: Row) -> npt.NDArray[np.float64]:
    """What the tokens of a row read, in f64."""
    layout, number = kind.layout, row.sequence
    group = layout.num_heads // layout.num_kv_heads
    keys = stored_keys(texts.k[number], layout.cache_type).repeat(group, 1)
    values = stored(texts.v[number], layout.cache_type).repeat(group, 1)
    others = np.arange(len(keys))
    results = []
    for position in range(row.begin, row.end):
        seen = others <= position
        if layout.window:
            seen &= others > position - layout.window
        if kind.has_types and texts.types[number][position]:
            first = last = position
            while first > row.begin and texts.types[number][first - 1]:
                first -= 1
            while last + 1 < row.end and texts.types[number][last + 1]:
                last += 1
            seen |= (others >= first) & (others <= last)
        scores = np.einsum("hd,thd->ht", texts.q[number][position].astype(np.float64), keys) * layout.scale
        if layout.cap:
            scores = layout.cap * np.tanh(scores / layout.cap)
        if kind.slopes is not None:
            scores += kind.slopes[:, None] * (others - position)
        scores[:, ~seen] = -np.inf
        highest = scores.max(1, keepdims=True)
        weights = np.exp(scores - highest)
        sums = weights.sum(1, keepdims=True)
        if kind.sinks is not None:
            sums += np.exp(kind.sinks[:, None] - highest)
        results.append(np.einsum("ht,thd->hd", weights / sums, values))
    return np.array(results)
