"""The rows of queries, keys and values in checkpoints that keep all three in one matrix."""

from __future__ import annotations

import numpy as np

from dragoman.models.facts import AttentionFacts
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
