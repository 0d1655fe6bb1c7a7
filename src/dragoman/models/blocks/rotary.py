"""Rotates queries and keys by their positions, in the one form that the plugin fuses: pairs (i, i + half).

`models.rotary` computes frequencies. Source: RoFormer (arXiv:2104.09864).
"""

from __future__ import annotations

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.nodes import (
    add,
    columns,
    concat,
    gather_rows,
    marked,
    multiply,
    reshape,
    scalar,
    scaled,
    width,
)
from dragoman.models.facts import QueryGrowth, RotaryRule
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node, as_f32, constant

Angles = tuple[Node, Node]
"""cos and sin, each f32 [T, 1, 1, size]."""

TURNED = "dragoman rotation"  # marks what `apply_rotary` makes


def rotary_angles(positions: Node, regimes: Node | None, rule: RotaryRule) -> Angles:
    """Shapes: positions i64 [T], or [3, T] where each pair has its axis; regimes i64 [T], None = only the short one."""
    frequencies = np.array([rule.frequencies, rule.long_frequencies or rule.frequencies], dtype=np.float32)
    table = np.concatenate([frequencies, frequencies], axis=1)
    turns = _turns(positions, rule)
    if regimes is None:
        per_token = constant(table[:1].reshape(1, 1, 1, -1))
    else:
        per_token = reshape(gather_rows(constant(table), regimes), -1, 1, 1, rule.size)
    angles = ops.multiply(turns, per_token)
    return scaled(ops.cos(angles).output(0), rule.magnitude), scaled(ops.sin(angles).output(0), rule.magnitude)


def _turns(positions: Node, rule: RotaryRule) -> Node:
    if positions.get_partial_shape().rank.get_length() == 1:
        # a Reshape: if it were an Unsqueeze, the runtime would forget that positions must stay f32 where it computes in bf16
        return reshape(as_f32(positions), -1, 1, 1, 1)
    per_dimension = gather_rows(as_f32(positions), constant(np.array(rule.axes * 2, dtype=np.int64)))
    return reshape(ops.transpose(per_dimension, ops.constant(np.array([1, 0]))).output(0), -1, 1, 1, rule.size)


def query_growth(positions: Node, growth: QueryGrowth, max_position: int) -> Node:
    """The factor of every token's queries. Shapes: i64 [T] -> f32 [T, 1, 1, 1]."""
    steps = np.arange((max_position + growth.first) // growth.every + 1)
    table = constant((1 + growth.weight * np.log1p(steps)).astype(np.float32))
    moved = add(positions, scalar(growth.first, np.int64)) if growth.first else positions
    return reshape(gather_rows(table, ops.divide(moved, scalar(growth.every, np.int64)).output(0)), -1, 1, 1, 1)


def apply_rotary(x: Node, angles: Angles) -> Node:
    """Heads whose first dimensions are rotated, as many as the angles cover. Shape: x [T, heads, 1, size]."""
    size, turned_size = width(x), width(angles[0])
    if turned_size == size:
        return marked(_turned(x, angles), TURNED)
    return marked(concat([_turned(columns(x, 0, turned_size), angles), columns(x, turned_size, size)]), TURNED)


def _turned(x: Node, angles: Angles) -> Node:
    cos, sin = angles
    half = width(x) // 2
    first, second = columns(x, 0, half), columns(x, half, np.iinfo(np.int64).max)
    quarter = concat([scaled(second, -1.0), first])
    return add(multiply(x, cos), multiply(quarter, sin))


def pair_order(num_heads: int, head_size: int, turned_size: int) -> Array:
    """The rows of a projection to heads that make interleaved pairs (2 i, 2 i + 1) pairs (i, i + half)."""
    turned = np.concatenate([np.arange(0, turned_size, 2), np.arange(1, turned_size, 2)])
    head = np.concatenate([turned, np.arange(turned_size, head_size)])
    order: Array = (np.arange(num_heads)[:, None] * head_size + head).reshape(-1)
    return order
