"""The graph pieces every decoder shares: linear, RMSNorm, rotary embedding, paged attention.

Does: build OpenVINO nodes in the shapes the CPU plugin fuses. Does not: read checkpoints or compile.
Called by the family builders (llama.py, ...), once per start.

Hidden states travel as [T, 1, hidden]: T tokens of all sequences of the step, concatenated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.op import _PagedAttentionExtension  # private: pinned by openvino~=2026.4.1 and held by tests/models

from dragoman.models.quantize import INT4_GROUP_SIZE
from dragoman.models.stored_weights import (
    Array,
    Node,
    WeightStorage,
    as_f32,
    constant,
    embedding_table,
    weight_matrix,
)


def scalar(value: float, dtype: type = np.float32) -> Node:
    """A rank-0 constant."""
    return ops.constant(np.array(value, dtype=dtype)).output(0)


def embedding(token_ids: Node, table: Array, storage: WeightStorage) -> Node:
    """The table's rows for `token_ids` as f32. Shapes: token_ids i64 [T], table [vocab, hidden] -> [T, 1, hidden]."""
    rows = gather_rows(embedding_table(table, storage), token_ids)
    return ops.unsqueeze(rows, ops.constant(np.array(1, dtype=np.int64))).output(0)


def linear(x: Node, weight: Array, storage: WeightStorage, bias: Array | None = None) -> Node:
    """`x @ weight.T (+ bias)`, as the sum of products over the columns that the format allows.

    Shapes: x [..., in], weight [out, in], bias [out].
    """
    widths = column_widths(weight.shape[1], storage.format.max_columns)
    if len(widths) == 1:
        product = _product(x, weight, storage)
    else:
        split = ops.variadic_split(
            x, ops.constant(np.array(-1, dtype=np.int64)), ops.constant(np.array(widths, dtype=np.int64))
        )
        parts = np.split(weight, np.cumsum(widths)[:-1], axis=1)
        product = _product(split.output(0), parts[0], storage)
        for index, part in enumerate(parts[1:], 1):
            product = ops.add(product, _product(split.output(index), part, storage)).output(0)
    if bias is None:
        return product
    return ops.add(product, constant(bias.astype(np.float32))).output(0)


def column_widths(num_columns: int, max_columns: int | None) -> list[int]:
    """The widths of the fewest nearly equal parts of at most `max_columns` columns, in whole groups of int4's size.

    One part if `max_columns` is None or the columns are not whole groups.
    """
    num_groups, rest = divmod(num_columns, INT4_GROUP_SIZE)
    if max_columns is None or rest:
        return [num_columns]
    num_parts = -(-num_groups // max(max_columns // INT4_GROUP_SIZE, 1))
    share, num_larger = divmod(num_groups, num_parts)
    return [(share + (part < num_larger)) * INT4_GROUP_SIZE for part in range(num_parts)]


def _product(x: Node, weight: Array, storage: WeightStorage) -> Node:
    return ops.matmul(x, weight_matrix(weight, storage), transpose_a=False, transpose_b=True).output(0)


def rms_norm(x: Node, weight: Array, epsilon: float) -> Node:
    """Root-mean-square normalisation over the last axis (arXiv:1910.07467), in the order the plugin fuses."""
    square_mean = ops.reduce_mean(ops.power(x, scalar(2.0)), ops.constant(np.array([-1], dtype=np.int64)), True)
    inverse = ops.divide(scalar(1.0), ops.sqrt(ops.add(square_mean, scalar(epsilon))))
    shaped = weight.astype(np.float32).reshape(1, 1, -1)
    return ops.multiply(ops.multiply(x, inverse), constant(shaped)).output(0)


def rotary_angles(position_ids: Node, inverse_frequencies: list[float]) -> tuple[Node, Node]:
    """cos and sin of every token's angles. Shapes: position_ids i64 [T] -> two of f32 [T, 1, 1, head_size]."""
    frequencies = np.array(inverse_frequencies, dtype=np.float32)
    table = constant(np.concatenate([frequencies, frequencies]).reshape(1, 1, 1, -1))
    positions = ops.unsqueeze(as_f32(position_ids), ops.constant(np.array([1, 2, 3], dtype=np.int64)))
    angles = ops.multiply(positions, table)
    return ops.cos(angles).output(0), ops.sin(angles).output(0)


def apply_rotary(x: Node, cos: Node, sin: Node, head_size: int) -> Node:
    """Rotate query or key heads by their angles. Shape: x [T, heads, 1, head_size]."""
    half = head_size // 2
    first, second = _columns(x, 0, half), _columns(x, half, np.iinfo(np.int64).max)
    rotated = ops.concat([ops.multiply(second, scalar(-1.0)), first], axis=-1)
    return ops.add(ops.multiply(x, cos), ops.multiply(rotated, sin)).output(0)


def _columns(x: Node, start: int, stop: int) -> Node:
    # a Slice, not a split: only this form is recognised as rotary embedding
    bounds = [ops.constant(np.array([value], dtype=np.int64)) for value in (start, stop, 1, 3)]
    return ops.slice(x, *bounds).output(0)


def split_heads(x: Node, num_heads: int, head_size: int) -> Node:
    """[T, 1, heads * head_size] -> [T, heads, 1, head_size]; with one position per token no value moves."""
    return _reshape(x, [-1, num_heads, 1, head_size])


def gather_rows(x: Node, rows: Node) -> Node:
    """The rows of these indices. Shapes: x [T, ...], rows i64 [R] -> [R, ...]."""
    return ops.gather(x, rows, ops.constant(np.array(0, dtype=np.int64))).output(0)


def merge_heads(x: Node, width: int) -> Node:
    """[T, ...] -> [T, width], as the paged-attention op takes it; `width` = heads * head_size."""
    return _reshape(x, [-1, width])


def _reshape(x: Node, shape: list[int]) -> Node:
    return ops.reshape(x, ops.constant(np.array(shape, dtype=np.int64)), special_zero=False).output(0)


@dataclass(frozen=True, slots=True)
class PagedInputs:
    """The step's block tables as graph parameters, shared by all layers."""

    past_lens: Node
    subsequence_begins: Node
    block_indices: Node
    block_indices_begins: Node
    max_context_len: Node


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads and head size of one attention layer; `sliding_window` 0 = attend to everything."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    sliding_window: int = 0


def cache_parameter(name: str) -> Any:
    """A key or value cache input: dynamic type and rank 4, so that the plugin chooses its own layout."""
    parameter = ops.parameter(ov.PartialShape([-1, -1, -1, -1]), ov.Type.dynamic, name=name)
    parameter.output(0).set_names({name})
    return parameter


def paged_attention(
    qkv: tuple[Node, Node, Node], caches: tuple[Any, Any], paged: PagedInputs, shape: AttentionShape
) -> Node:
    """Causal attention over the block tables; writes the new keys and values into the caches.

    Shapes: q [T, heads * head_size], k and v [T, kv_heads * head_size] -> [T, heads * head_size].
    Source: PagedAttention (arXiv:2309.06180); the op's 28 inputs are OpenVINO 2026.4's PagedAttentionExtension.
    """
    empty_i32, empty_f32 = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
    inputs: list[Any] = [
        *qkv,
        caches[0].output(0),
        caches[1].output(0),
        paged.past_lens,
        paged.subsequence_begins,
        paged.block_indices,
        paged.block_indices_begins,
        scalar(shape.head_size**-0.5),
        scalar(shape.sliding_window, np.int32),
        constant(empty_f32),  # alibi slopes
        paged.max_context_len,
        constant(empty_i32),  # score aggregation window
        constant(empty_i32),  # rotated block indices
        constant(empty_i32),  # rotation deltas
        constant(empty_f32),  # rotation table
        constant(empty_f32),  # xattention threshold
        scalar(0, np.int32),  # xattention block size
        scalar(0, np.int32),  # xattention stride
        constant(np.zeros((0, 0, 0, 0), dtype=np.float32)),  # attention sinks
        scalar(0, np.int32),  # adaptive eviction: start size
        *(constant(empty_i32) for _ in range(4)),  # adaptive eviction tables, token types
        constant(np.zeros(0, dtype=np.uint8)),  # query-query bias
        constant(empty_i32),  # query-query bias begins
    ]
    node = _PagedAttentionExtension(inputs)
    info = node.get_rt_info()  # from which the plugin takes the caches' shapes
    info["num_k_heads"] = info["num_v_heads"] = shape.num_kv_heads
    info["k_head_size"] = info["v_head_size"] = shape.head_size
    return node.output(0)
