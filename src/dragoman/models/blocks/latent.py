"""Attention whose keys and values are made of one narrow vector per token, here with its heads expanded.

The cache holds keys and values of heads, not the narrow vectors. Source: DeepSeek-V2 (arXiv:2405.04434).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.linear import linear, linears
from dragoman.models.blocks.nodes import concat, integers, split_heads, unsqueeze
from dragoman.models.blocks.norms import rms_norm
from dragoman.models.blocks.rotary import pair_order
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Sizes of the rotated and the other part of a head, of a value, and of the narrow vectors.

    `query_rank` 0 = queries are made of the hidden states. `is_interleaved`: pairs for rotation lie side by side.
    """

    num_heads: int
    turned_size: int
    plain_size: int
    value_size: int
    rank: int
    query_rank: int
    is_interleaved: bool

    @property
    def head_size(self) -> int:
        return self.turned_size + self.plain_size


def latent_heads(x: Node, weights: Weights, shape: LatentShape, epsilon: float) -> tuple[Node, Node, Node]:
    """Queries, keys and values. Heads hold the rotated part first, which scores do not notice.

    Shapes: x [T, 1, hidden] -> q, k [T, heads, 1, size], v [T, 1, heads * value size].
    """
    heads, rank, turned = shape.num_heads, shape.rank, shape.turned_size
    narrow = weights.at("kv_a_proj_with_mqa")
    order = pair_order(1, turned, turned) if shape.is_interleaved else np.arange(turned)
    parts = [narrow.rows(slice(0, rank), rank + turned), narrow.rows(rank + order, rank + turned)]
    latent, turned_key = linears(x, parts, [rank, turned], is_fused=narrow.storage.format.fuses_attention)
    latent = rms_norm(latent, weights.at("kv_a_layernorm"), epsilon)
    size = shape.plain_size + shape.value_size
    expanded = weights.at("kv_b_proj")
    parts = [expanded.rows(_parts_of_heads(heads, size, *part), heads * size) for part in _bounds(shape)]
    widths = [heads * shape.plain_size, heads * shape.value_size]
    plain_keys, v = linears(latent, parts, widths, is_fused=narrow.storage.format.fuses_attention)
    shared = ops.tile(unsqueeze(turned_key, 1), integers(1, heads, 1, 1)).output(0)
    return _queries(x, weights, shape, epsilon), concat([shared, split_heads(plain_keys, heads)]), v


def _queries(x: Node, weights: Weights, shape: LatentShape, epsilon: float) -> Node:
    matrix = weights.at("q_b_proj" if shape.query_rank else "q_proj")
    if shape.query_rank:
        x = rms_norm(linear(x, weights.at("q_a_proj"), shape.query_rank), weights.at("q_a_layernorm"), epsilon)
    turned, plain, width = shape.turned_size, shape.plain_size, shape.num_heads * shape.head_size
    order = pair_order(1, turned, turned) if shape.is_interleaved else np.arange(turned)
    head = np.concatenate([plain + order, np.arange(plain)])
    rows = (np.arange(shape.num_heads)[:, None] * shape.head_size + head).reshape(-1)
    return split_heads(linear(x, matrix.rows(rows, width), width), shape.num_heads)


def _bounds(shape: LatentShape) -> tuple[tuple[int, int], tuple[int, int]]:
    return (0, shape.plain_size), (shape.plain_size, shape.plain_size + shape.value_size)


def _parts_of_heads(num_heads: int, size: int, begin: int, end: int) -> Array:
    rows: Array = (np.arange(num_heads)[:, None] * size + np.arange(begin, end)).reshape(-1)
    return rows
