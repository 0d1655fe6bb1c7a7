"""How many replicas a load needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dragoman.tools.plan.router import RouterKind
from dragoman.tools.plan.sizing import HIGHEST_UTILISATION, MOST_TOGETHER, Bounds, PlanError, Planner
from dragoman.tools.plan.workload import Workload
from tests.plan.replicas import COSTS, replica

ASKED = Workload(rate=20.0, prompt_tokens=24, output_tokens=8, num_requests=40)


def planner(workload: Workload = ASKED, router: RouterKind = "least-outstanding") -> Planner:
    return Planner(replica(), COSTS, workload, router)


@pytest.mark.parametrize("rate", [2.0, 25.0, 60.0])
@pytest.mark.parametrize("bounds", [Bounds(), Bounds(ttft_s=0.12), Bounds(ttft_s=0.2, itl_s=0.05)])
def test_as_few_replicas_are_planned_as_keep_the_bounds(rate: float, bounds: Bounds) -> None:
    sizing = planner(replace(ASKED, rate=rate))
    load = sizing.plan(bounds).load
    assert load.is_within
    assert load.utilisation <= HIGHEST_UTILISATION
    assert load.num_replicas == 1 or not sizing.load(load.num_replicas - 1, bounds).is_within
    for bound_s, seconds in ((bounds.ttft_s, load.ttft_p99_s), (bounds.itl_s, load.itl_p99_s)):
        assert bound_s is None or seconds <= bound_s


def test_a_given_number_of_replicas_is_judged() -> None:
    sizing = planner(replace(ASKED, rate=60.0))
    needed = sizing.plan(Bounds()).load.num_replicas
    assert needed > 1
    assert not sizing.plan(Bounds(), needed - 1).load.is_within
    more = sizing.plan(Bounds(), needed + 1).load
    assert more.is_within
    assert more.num_replicas == needed + 1


def test_few_replicas_are_simulated_together_and_of_many_one() -> None:
    sizing = planner(replace(ASKED, rate=60.0))
    assert sizing.load(MOST_TOGETHER, Bounds()).num_together == MOST_TOGETHER
    many = sizing.load(1000, Bounds())
    assert many.num_together == 1
    assert many.requests_per_s == pytest.approx(60.0, rel=0.3)
    assert many.utilisation == pytest.approx(60.0 / 1000 / sizing.carries(1))


def test_a_thousand_times_the_rate_needs_a_thousand_times_the_replicas() -> None:
    rate = planner().carries(1)
    load = planner(replace(ASKED, rate=1000 * rate)).plan(Bounds()).load
    assert load.num_replicas == pytest.approx(1000 / HIGHEST_UTILISATION, rel=0.01)


def test_what_one_replica_carries_is_what_saturates_it() -> None:
    sizing = planner()
    rate = sizing.carries(1)
    for share, is_busy in ((0.3, False), (1.5, True)):
        load = planner(replace(ASKED, rate=share * rate, num_requests=150)).load(1, Bounds())
        assert (load.busy > 0.95) == is_busy
        assert load.requests_per_s == pytest.approx(min(share, 1) * rate, rel=0.15)


def test_prefix_affinity_lets_replicas_carry_more_where_prefixes_do_not_fit_one() -> None:
    asked = Workload(40.0, 96, 4, 40, prefix_tokens=88, num_prefixes=300)
    least, affine = planner(asked), planner(asked, "prefix")
    assert affine.carries(8) > 1.2 * least.carries(8)
    assert affine.load(8, Bounds()).hit_rate > 1.2 * least.load(8, Bounds()).hit_rate


@pytest.mark.parametrize(
    ("workload", "bounds", "option"),
    [
        (ASKED, Bounds(ttft_s=0.001), "ttft"),
        (ASKED, Bounds(itl_s=0.001), "itl"),
        (replace(ASKED, prompt_tokens=600), Bounds(), "prompt"),
    ],
)
def test_what_cannot_be_is_refused_by_its_option(workload: Workload, bounds: Bounds, option: str) -> None:
    with pytest.raises(PlanError) as raised:
        planner(workload).plan(bounds)
    assert raised.value.option == option


def test_a_sequence_that_does_not_fit_the_cache_is_refused() -> None:
    with pytest.raises(PlanError, match="a sequence of 32 tokens does not fit"):
        Planner(replica(num_blocks=3), COSTS, ASKED, "least-outstanding")
