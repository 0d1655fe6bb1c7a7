"""Routers: who gets a request, and what that does to prefix caches."""

from __future__ import annotations

import random

import pytest

from dragoman.cli import plan
from dragoman.engine.affinity import MAX_OVERLOAD
from dragoman.tools.plan.router import (
    ROUTERS,
    LeastOutstanding,
    PrefixAffinity,
    RouterKind,
    router_of,
    share_of_first,
)
from dragoman.tools.plan.simulate import simulate
from dragoman.tools.plan.workload import NO_PREFIX, Workload, arrivals
from tests.plan.hit_rates import best_hit_rate
from tests.plan.replicas import BLOCK_SIZE, COSTS, replica

ASKED = Workload(rate=4.0, prompt_tokens=64, output_tokens=4, num_requests=200, prefix_tokens=48, num_prefixes=40)


def test_the_least_outstanding_is_chosen_and_of_equals_the_next() -> None:
    router = LeastOutstanding()
    assert router.choose(NO_PREFIX, [3, 1, 2]) == 1
    assert [router.choose(NO_PREFIX, [0, 0, 0]) for _ in range(4)] == [2, 0, 1, 2]


def test_a_prefix_stays_where_it_is_until_the_replica_has_too_much() -> None:
    router = PrefixAffinity()
    homes = {router.choose(7, [count] * 4) for count in (0, 1, 5)}
    assert len(homes) == 1
    (home,) = homes
    others = [10] * 4
    others[home] = 30
    assert router.choose(7, others) != home


def test_no_replica_gets_more_than_the_bound() -> None:
    router, outstanding, dice = PrefixAffinity(), [0] * 5, random.Random(0)
    for total in range(1, 200):
        chosen = router.choose(dice.choice([0, 0, 0, 1]), outstanding)
        outstanding[chosen] += 1
        assert outstanding[chosen] <= MAX_OVERLOAD * total / 5 + 1


def test_another_replica_takes_only_its_part_of_the_prefixes() -> None:
    router = PrefixAffinity()
    moved = [prefix for prefix in range(1000) if router.choose(prefix, [0] * 9) != router.choose(prefix, [0] * 10)]
    assert all(router.choose(prefix, [0] * 10) == 9 for prefix in moved)
    assert 50 < len(moved) < 160


def test_the_command_line_knows_every_router() -> None:
    assert plan.ROUTERS == ROUTERS


def test_without_a_prefix_the_load_decides() -> None:
    assert PrefixAffinity().choose(NO_PREFIX, [2, 2, 0, 2]) == 2


@pytest.mark.parametrize("kind", ROUTERS)
def test_one_replicas_share_has_the_hit_rate_of_all(kind: RouterKind) -> None:
    """What is simulated of many replicas, one of them, stands for all."""
    count = 4
    weights = share_of_first(ASKED, count, kind)
    assert (weights is None) == (kind == "least-outstanding")
    one = replica(num_blocks=100)
    together = simulate(one, COSTS, ASKED, arrivals(ASKED), (router_of(kind), count))
    part = Workload(1.0, 64, 4, 200, 48, 40)
    alone = simulate(one, COSTS, part, arrivals(part, weights), (LeastOutstanding(), 1), weights)
    assert alone.hit_rate == pytest.approx(together.hit_rate, abs=0.12)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("num_blocks", [60, 120])
def test_no_simulation_finds_more_than_the_formula_allows(count: int, num_blocks: int) -> None:
    one = replica(num_blocks=num_blocks)
    for kind in ROUTERS:
        found = simulate(one, COSTS, ASKED, arrivals(ASKED), (router_of(kind), count))
        best = best_hit_rate(ASKED, count, kind, num_blocks * BLOCK_SIZE)
        assert 0.55 * best <= found.hit_rate <= best + 0.05


def test_affinity_gains_with_every_replica_and_the_load_alone_does_not() -> None:
    asked = Workload(1.0, 100, 10, prefix_tokens=80, num_prefixes=10_000)
    least = [best_hit_rate(asked, count, "least-outstanding", 8000) for count in (1, 10, 100)]
    prefix = [best_hit_rate(asked, count, "prefix", 8000) for count in (1, 10, 100)]
    assert least[0] == least[1] == least[2] == pytest.approx(prefix[0])
    assert prefix[0] < prefix[1] < prefix[2] <= 0.8


def test_the_share_of_one_of_many_holds_its_part_of_the_prefixes() -> None:
    asked = Workload(1.0, 100, 10, prefix_tokens=80, num_prefixes=10_000)
    weights = share_of_first(asked, 100, "prefix")
    assert weights is not None
    assert weights.sum() == pytest.approx(1)
    assert 60 < (weights > 0).sum() < 160
