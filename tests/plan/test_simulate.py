"""The simulation: the engine's scheduler in virtual time, for one replica and for several."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import mean

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.tools.percentiles import percentile
from dragoman.tools.plan.costs import CostsError
from dragoman.tools.plan.router import LeastOutstanding
from dragoman.tools.plan.simulate import Replica, Run, latencies, simulate
from dragoman.tools.plan.workload import Arrival, Workload, arrivals
from tests.plan.replicas import COSTS, free_of_pace, replica
from tests.support.tiers import examples

ASKED = Workload(rate=5.0, prompt_tokens=20, output_tokens=6, num_requests=60)

workloads = st.builds(
    Workload,
    rate=st.floats(0.5, 40.0),
    prompt_tokens=st.integers(2, 120),
    output_tokens=st.integers(1, 20),
    num_requests=st.integers(1, 25),
    seed=st.integers(0, 1000),
)


def run(workload: Workload, num_replicas: int = 1, one: Replica | None = None) -> Run:
    return simulate(one or replica(), COSTS, workload, arrivals(workload), (LeastOutstanding(), num_replicas))


@settings(max_examples=examples(40))
@given(workloads, st.integers(1, 3))
def test_everybody_gets_all_tokens_in_order(workload: Workload, num_replicas: int) -> None:
    found = run(workload, num_replicas)
    assert len(found.times) == workload.num_requests
    for times in found.times:
        assert len(times.token_s) == workload.output_tokens
        assert times.token_s == sorted(times.token_s)
        assert times.token_s[0] > times.arrival_s
    assert 0 < found.busy <= 1


@settings(max_examples=examples(25))
@given(workloads)
def test_more_replicas_are_never_worse(workload: Workload) -> None:
    means = [mean(latencies(run(workload, count).times)[0]) for count in (1, 2, 4)]
    for fewer, more in pairwise(means):
        assert more <= 1.1 * fewer


@settings(max_examples=examples(10))
@given(workloads)
def test_the_same_seed_gives_the_same_run(workload: Workload) -> None:
    assert run(workload, 2) == run(workload, 2)


def test_another_seed_gives_another_run() -> None:
    assert run(ASKED) != run(replace(ASKED, seed=1))


def test_a_lone_request_takes_what_its_steps_cost() -> None:
    alone = replace(ASKED, prompt_tokens=16, output_tokens=3, num_requests=1)
    found = simulate(replica(), COSTS, alone, [Arrival(0, 1.0)], (LeastOutstanding(), 1))
    prompt = 0.012 + 8 * 0.048 / 56 + 1e-4 + 16 * 17 / 2 * 1e-8
    decodes = [0.01 + 1e-4 + 17e-6, 0.01 + 1e-4 + 18e-6]
    first, gaps = latencies(found.times)
    assert first == pytest.approx([prompt])
    assert gaps == pytest.approx(decodes)


def gaps_between(*slowness: tuple[float, float], num_requests: int = 1) -> list[float]:
    """Of requests without company, all of whose steps between tokens cost the same."""
    alone = replace(ASKED, prompt_tokens=16, output_tokens=400)
    coming = [Arrival(number, 100.0 * number) for number in range(num_requests)]
    costs = msgspec.structs.replace(COSTS, context_s=(0.0,), slowness=slowness)
    return latencies(simulate(replica(), costs, alone, coming, (LeastOutstanding(), 1)).times)[1]


def test_steps_are_as_uneven_as_those_that_were_measured() -> None:
    """Slow ones come together if they did, and then requests wait longer."""
    even = gaps_between()[0]
    uneven = gaps_between(*[(0.8 * even, 0.8)] * 100, *[(1.6 * even, 1.6)] * 50)
    shares = [gap / even for gap in uneven]
    assert {0.8, 1.6} < {round(share, 6) for share in shares}
    assert min(shares) >= 0.8 - 1e-9
    assert max(shares) <= 1.6 + 1e-9
    assert sum(before != pytest.approx(after) for before, after in pairwise(shares)) < len(shares) / 8


def test_a_slow_second_is_a_second_whatever_runs() -> None:
    """Half the measured time was slow, though it was one of a hundred steps: so is half the simulated time."""
    even = gaps_between()[0]
    gaps = gaps_between(*[(0.01, 1.0)] * 100, (1.0, 3.0), num_requests=12)
    slow_s = sum(gap for gap in gaps if gap > 2 * even)
    assert slow_s / sum(gaps) == pytest.approx(0.5, abs=0.15)


def test_a_long_step_has_the_mean_of_many_moments() -> None:
    even = gaps_between()[0]
    shares = [gap / even for gap in gaps_between(*[(even / 100, 0.5), (even / 100, 1.5)] * 500)]
    assert shares == pytest.approx([0.75] * len(shares), rel=0.05)  # two moments pass 2 + 2/3 hundredths of its work


def test_a_queue_grows_beyond_saturation_only() -> None:
    def late(rate: float) -> float:
        """How much longer the last fifth waits than the second."""
        first, _ = latencies(run(replace(ASKED, rate=rate, num_requests=400)).times)
        return mean(first[-80:]) / mean(first[80:160])

    ends = sorted(one.token_s[-1] for one in run(replace(ASKED, rate=1e6, num_requests=200)).times)
    carried = len(ends) / ends[-1]
    assert late(0.7 * carried) < 2
    assert late(1.5 * carried) > 2


def test_prompts_are_paced_as_in_the_engine() -> None:
    """The scheduler holds back pieces of long prompts, and gaps between others' tokens stay short."""
    asked = Workload(rate=1.0, prompt_tokens=300, output_tokens=60, num_requests=40)
    paced, unpaced = (
        percentile(latencies(run(asked, one=one).times)[1], 0.9) for one in (replica(), free_of_pace(replica()))
    )
    assert paced < 0.8 * unpaced


def test_a_cache_that_is_too_small_costs_preemptions() -> None:
    asked = Workload(rate=1e6, prompt_tokens=8, output_tokens=64, num_requests=16)
    assert run(asked, one=replica(20, assumed_output_tokens=1)).num_preemptions > 0
    assert run(asked, one=replica(200)).num_preemptions == 0


def test_shared_prefixes_are_found_in_the_cache() -> None:
    asked = replace(ASKED, prompt_tokens=48, prefix_tokens=32, num_prefixes=3)
    found = run(asked)
    assert found.hit_rate == pytest.approx(32 / 48, abs=0.05)
    assert run(replace(asked, prefix_tokens=0)).hit_rate == 0
    assert run(asked, one=replica(prefix_cache="off")).hit_rate == 0
    assert mean(latencies(found.times)[0]) < mean(latencies(run(replace(asked, prefix_tokens=0)).times)[0])


def test_costs_of_another_model_are_refused() -> None:
    windowed = msgspec.structs.replace(COSTS, context_s=(0.0, 0.0), pair_s=(0.0, 0.0))
    with pytest.raises(CostsError, match="2 numbers each, the model has 1 kinds of cache"):
        simulate(replica(), windowed, ASKED, arrivals(ASKED), (LeastOutstanding(), 1))
