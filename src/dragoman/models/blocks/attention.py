"""Attention over the block tables: projections to heads, and the operation of our library or of the plugin that attends.

Families norm queries and keys between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from openvino.op import _PagedAttentionExtension  # private to OpenVINO; tests/models notices changes

from dragoman.kernels.graph import AttentionLayout, attention
from dragoman.models.blocks.linear import linear, linears
from dragoman.models.blocks.nodes import multiply, reshape, scalar, unsqueeze
from dragoman.models.blocks.rotary import apply_rotary, pair_order
from dragoman.models.blocks.step import BlockTables, LayerInputs
from dragoman.models.facts import AttentionFacts
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node, constant
from dragoman.models.weights import Weights

Projections = tuple[Weights, Weights, Weights]
"""The weights of queries, keys and values."""


def in_turn(fused: Weights, facts: AttentionFacts) -> Projections:
    """The parts of a matrix of all queries, then all keys, then all values."""
    first, second = facts.query_width, facts.query_width + facts.key_width
    size = second + facts.value_width
    rows = (slice(0, first), slice(first, second), slice(second, size))
    return fused.rows(rows[0], size), fused.rows(rows[1], size), fused.rows(rows[2], size)


def by_group(fused: Weights, facts: AttentionFacts) -> Projections:
    """The parts of a matrix that has the queries, the key and the value of each key/value head together."""
    group = facts.num_heads // facts.num_kv_heads
    size = (group + 2) * facts.key_width
    rows = np.arange(size).reshape(facts.num_kv_heads, group + 2, facts.head_size)
    q, k, v = (rows[:, part].reshape(-1) for part in (slice(group), group, group + 1))
    return fused.rows(q, size), fused.rows(k, size), fused.rows(v, size)


HeadNorm: TypeAlias = Callable[[Node], Node]


def queries_keys_values(
    x: Node, weights: tuple[Weights, Weights, Weights], facts: AttentionFacts, *, bias: bool = False
) -> list[Node]:
    """Shapes: x [T, 1, hidden] -> three of [T, 1, heads * size]. Interleaved pairs are reordered to rotate as halves."""
    q, k, v = weights
    if facts.rotary is not None and facts.rotary.is_interleaved:
        turned = facts.rotary.size
        q = q.rows(pair_order(facts.num_heads, facts.head_size, turned), facts.query_width)
        k = k.rows(pair_order(facts.num_kv_heads, facts.head_size, turned), facts.key_width)
    is_fused = q.storage.format.fuses_attention
    if q.storage.format.is_ours:  # one operation multiplies matrices of several formats
        v = v.careful()
    elif q.storage.format.careful != q.storage.format:
        widths = [facts.query_width, facts.key_width]
        return [
            *linears(x, [q, k], widths, bias=bias, is_fused=is_fused),
            linear(x, v.careful(), facts.value_width, bias=bias),
        ]
    widths = [facts.query_width, facts.key_width, facts.value_width]
    return linears(x, [q, k, v], widths, bias=bias, is_fused=is_fused)


def attend(
    q: Node,
    k: Node,
    v: Node,
    layer: LayerInputs,
    sinks: Array | None = None,
    norms: tuple[HeadNorm, HeadNorm] | None = None,
    *,
    is_turned: bool = False,
) -> Node:
    """The heads' output for the rows that the layer keeps. `norms`: of queries and keys, after rotation.

    Shapes: q, k [T, heads, 1, size], v [T, 1, heads * size] -> [T or R, 1, heads * value size]; sinks f32 [heads].
    """
    facts = layer.attention
    if facts.rotary is not None and not is_turned:
        angles = layer.step.angles(facts.rotary)
        q, k = apply_rotary(q, angles), apply_rotary(k, angles)
    if norms is not None:
        q, k = norms[0](q), norms[1](k)
    if facts.growth is not None:
        q = multiply(q, layer.step.growth(facts.growth))
    flat = [
        reshape(heads, -1, size)
        for heads, size in ((q, facts.query_width), (k, facts.key_width), (v, facts.value_width))
    ]
    if layer.whole_texts is not None:
        q, k, v = flat
        return layer.keep(unsqueeze(layer.whole_texts.attend(q, k, v, facts, is_windowed=bool(facts.window)), 1))
    step = layer.step
    if step.cache_type is not None:
        return layer.keep(unsqueeze(_own_attention(flat, layer, step.cache_type, sinks), 1))
    shared = (step.subsequence_begins, step.max_context_len)
    attended = paged_attention(flat, layer.caches(), layer.tables, shared, facts, sinks, layer.token_types)
    return layer.keep(unsqueeze(attended, 1))


def _own_attention(qkv: list[Node], layer: LayerInputs, cache_type: str, sinks: Array | None) -> Node:
    """`paged_attention` by the library of kernels, which alone caps scores."""
    facts, step, tables = layer.attention, layer.step, layer.tables
    layout = attention_layout(facts, cache_type)
    keys, values = layer.caches(layout)
    where = [tables.past_lens, step.subsequence_begins, tables.block_indices, tables.block_indices_begins]
    slopes = np.array(facts.alibi_slopes, np.float32) if facts.alibi_slopes else None
    caches = (keys.output(0), values.output(0))
    attended: Node = attention(qkv, caches, step.positions, where, layout, sinks, slopes, layer.token_types)
    return attended


def attention_layout(facts: AttentionFacts, cache_type: str) -> AttentionLayout:
    sizes = (facts.num_heads, facts.num_kv_heads, facts.head_size, facts.value_size)
    return AttentionLayout(*sizes, cache_type, facts.scale, facts.window, facts.softcap)


def paged_attention(
    qkv: list[Node],
    caches: tuple[Any, Any],
    tables: BlockTables,
    shared: tuple[Node, Node],
    facts: AttentionFacts,
    sinks: Array | None = None,
    token_types: Node | None = None,
) -> Node:
    """Causal attention over the block tables; writes the new keys and values into the caches.

    `token_types`: neighbours of type 1 in one step see each other, later ones too; None = no tokens do.
    Shapes: q [T, heads * size], k and v [T, kv heads * size] -> [T, heads * value size]; `shared`: subsequence_begins,
    max_context_len; token_types i32 [T].
    Source: PagedAttention (arXiv:2309.06180); the op's 28 inputs are OpenVINO 2026.4's.
    """
    empty_i32, empty_f32 = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
    no_sinks = np.zeros((0, 0, 0, 0), dtype=np.float32)
    inputs: list[Any] = [
        *qkv,
        caches[0].output(0),
        caches[1].output(0),
        tables.past_lens,
        shared[0],
        tables.block_indices,
        tables.block_indices_begins,
        scalar(facts.scale),
        scalar(facts.window, np.int32),
        constant(np.array(facts.alibi_slopes, dtype=np.float32)),
        shared[1],
        constant(empty_i32),  # score aggregation window
        constant(empty_i32),  # rotated block indices
        constant(empty_i32),  # rotation deltas
        constant(empty_f32),  # rotation table
        constant(empty_f32),  # xattention threshold
        scalar(0, np.int32),  # xattention block size
        scalar(0, np.int32),  # xattention stride
        constant(no_sinks if sinks is None else sinks.astype(np.float32).reshape(1, -1, 1, 1)),
        scalar(0, np.int32),  # adaptive eviction: start size
        *(constant(empty_i32) for _ in range(3)),  # adaptive eviction tables
        constant(empty_i32) if token_types is None else token_types,
        constant(np.zeros(0, dtype=np.uint8)),  # query-query bias
        constant(empty_i32),  # query-query bias begins
    ]
    node = _PagedAttentionExtension(inputs)
    info = node.get_rt_info()  # the plugin takes the caches' shapes from it
    info["num_k_heads"] = info["num_v_heads"] = facts.num_kv_heads
    info["k_head_size"], info["v_head_size"] = facts.head_size, facts.value_size
    return node.output(0)
