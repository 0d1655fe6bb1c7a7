"""Attention whose scores are bounded by a cap, which the plugin's operation cannot do: plain operations over the caches.

Does: what `attention.paged_attention` would give with a cap, for any mix of sequences in a step. Does not: write the caches
(the operation does, and what it computes is dropped), or be fast: it is there to be exact. Called by `attention.attend` for
layers whose facts have a cap, which the loader leaves there for caches of f32 alone.

Sequence after sequence is computed, in a loop of the graph: its blocks, its new tokens' queries, one product of both. So the
memory that it takes is that of the longest prompt's piece times its context. Source: Gemma 2 (arXiv:2408.00118).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models.blocks.nodes import capped, gather_rows, integers, reshape, scalar, scaled, unsqueeze
from dragoman.models.blocks.step import BlockTables
from dragoman.models.facts import AttentionFacts
from dragoman.models.storage.constants import Node

_HIDDEN = -1e30  # the score of a token that is not seen: its exponential is 0


def capped_attention(
    q: Node,
    caches: tuple[Any, Any],
    tables: BlockTables,
    subsequence_begins: Node,
    written: Node,
    facts: AttentionFacts,
) -> Node:
    """The heads' output. `written`: the output of the operation that has written the step's keys and values.

    Shapes: q and written [T, heads * size] -> [T, heads * value size]. The caches are f32 [blocks, kv heads, slots, size].
    """
    # Nothing is read before it is written: the blocks' numbers seem to depend on what the operation gave.
    largest = ops.reduce_max(written, integers(0, 1), False)
    nothing = ops.convert(ops.less(largest, largest), ov.Type.i32)
    blocks = ops.add(tables.block_indices, nothing).output(0)
    keys, values = (ops.convert(gather_rows(cache.output(0), blocks), ov.Type.f32).output(0) for cache in caches)
    num_rows = ops.gather(ops.shape_of(q, "i64"), integers(0), scalar(0, np.int64))
    shape = ops.concat([num_rows, integers(facts.output_width)], axis=0)
    inputs = [
        q,
        keys,
        values,
        _wide(subsequence_begins),
        _wide(tables.block_indices_begins),
        _wide(tables.past_lens),
    ]
    return _for_each_sequence(inputs, ops.broadcast(scalar(0.0), shape).output(0), facts)


def _for_each_sequence(inputs: list[Node], start: Node, facts: AttentionFacts) -> Node:
    """The result with the rows of one sequence after the other filled in."""
    body = [
        ops.parameter(node.get_partial_shape(), ov.Type.i64 if index > 2 else ov.Type.f32)
        for index, node in enumerate(inputs)
    ]
    number = ops.parameter(ov.PartialShape([]), ov.Type.i64)
    result = ops.parameter(start.get_partial_shape(), ov.Type.f32)
    rows, attended = _sequence([parameter.output(0) for parameter in body], number.output(0), facts)
    filled = ops.scatter_update(result, rows, attended, scalar(0, np.int64))
    goes_on = ops.constant(np.array(True)).output(0)
    num_sequences = ops.squeeze(ops.shape_of(inputs[-1], "i64"), integers(0))
    loop = ops.loop(num_sequences, ops.constant(np.array(True)))
    loop.set_function(ov.Model([goes_on, filled.output(0)], [number, *body, result]))
    loop.set_special_body_ports([0, 0])
    for parameter, node in zip(body, inputs, strict=True):
        loop.set_invariant_input(parameter, node)
    loop.set_merged_input(result, start, filled.output(0))
    attended_rows: Node = loop.get_iter_value(filled.output(0), -1)
    return attended_rows


def _sequence(body: list[Node], number: Node, facts: AttentionFacts) -> tuple[Node, Node]:
    """A sequence's rows of the step, and what its heads read. Shapes: i64 [n], [n, heads * value size]."""
    q, keys, values, begins, block_begins, past_lens = body
    rows, blocks = _span(begins, number), _span(block_begins, number)
    kv_heads, group = facts.num_kv_heads, facts.num_heads // facts.num_kv_heads
    queries = _permuted(reshape(gather_rows(q, rows), -1, kv_heads, group, facts.head_size), 1, 2, 0, 3)
    keys, values = (
        reshape(_permuted(gather_rows(cache, blocks), 1, 0, 2, 3), kv_heads, 1, -1, size)
        for cache, size in ((keys, facts.head_size), (values, facts.value_size))
    )
    num_past, num_new, num_slots = gather_rows(past_lens, number), _length(rows, 0), _length(keys, 2)
    own = unsqueeze(ops.add(_count(num_new), num_past).output(0), 1)  # positions, from the table's first slot on
    others = unsqueeze(_count(num_slots), 0)
    seen = ops.less_equal(others, own)
    if facts.window:
        seen = ops.logical_and(seen, ops.greater(others, ops.subtract(own, scalar(facts.window, np.int64))))
    scores = scaled(ops.matmul(queries, keys, transpose_a=False, transpose_b=True).output(0), facts.scale)
    scores = ops.select(seen, capped(scores, facts.softcap), scalar(_HIDDEN)).output(0)
    is_used = unsqueeze(ops.less(_count(num_slots), ops.add(num_past, num_new)).output(0), 0, 1, 3)
    values = ops.select(is_used, values, scalar(0.0)).output(0)  # slots that nobody has written may hold no numbers
    mixed = ops.matmul(ops.softmax(scores, -1), values, transpose_a=False, transpose_b=False).output(0)
    return rows, reshape(_permuted(mixed, 2, 0, 1, 3), -1, facts.output_width)


def _wide(x: Node) -> Node:
    return ops.convert(x, ov.Type.i64).output(0)


def _span(begins: Node, number: Node) -> Node:
    """The integers from an entry of `begins` to the next one. Shapes: i64 [S + 1], i64 [] -> i64 [n]."""
    following = ops.add(number, scalar(1, np.int64)).output(0)
    return _range(gather_rows(begins, number), gather_rows(begins, following))


def _count(length: Node) -> Node:
    return _range(scalar(0, np.int64), length)


def _range(begin: Node, end: Node) -> Node:
    return ops.range(begin, end, scalar(1, np.int64), "i64").output(0)


def _length(x: Node, axis: int) -> Node:
    """The size of an axis. Shape: i64 []."""
    return ops.gather(ops.shape_of(x, "i64"), scalar(axis, np.int64), scalar(0, np.int64)).output(0)


def _permuted(x: Node, *axes: int) -> Node:
    return ops.transpose(x, integers(*axes)).output(0)
