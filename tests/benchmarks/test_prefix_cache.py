"""The simulated prefix cache: all of it where prefixes fit, near the best in turn and beside single prompts."""

from __future__ import annotations

import random

import pytest

from benchmarks import prefix_cache


@pytest.mark.parametrize(
    ("traffic", "part_of_best", "by_recency"),
    [
        (prefix_cache.circle(17), 1.0, 1.0),
        (prefix_cache.circle(25), 0.9, 0.0),
        (prefix_cache.beside_single_prompts(10, 60), 0.9, 0.6),
    ],
    ids=["all fit", "in turn", "beside single prompts"],
)
def test_the_cache_finds_nearly_what_can_be_found(
    traffic: prefix_cache.Traffic, part_of_best: float, by_recency: float
) -> None:
    chains = list(traffic(random.Random(0)))
    best = prefix_cache.found_at_best(chains)
    assert prefix_cache.found(chains) >= part_of_best * best
    assert prefix_cache.found_by_recency(chains) <= by_recency * best
