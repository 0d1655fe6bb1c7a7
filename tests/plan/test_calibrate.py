"""The calibration, of machines in virtual time: it finds the costs that their steps have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dragoman.engine.rolling.blocks.window import CachePool
from dragoman.plan.calibrate import Cases, measure_costs
from dragoman.plan.costs import StepCosts, StepWork
from dragoman.plan.replica import Replica
from dragoman.plan.simulate import CostRunner, VirtualTime
from tests.plan.replicas import COSTS, replica

SLOW_ROWS = StepCosts(
    tokens=((1, 0.04), (16, 0.05), (64, 0.2)), row_s=0.004, context_s=(5e-5,), pair_s=(2e-6,)
)  # logits and attention count as much as the rest


def calibrated(planned: Replica, costs: StepCosts) -> tuple[StepCosts, list[float]]:
    """The costs that are found, and what was reported."""
    time, cases, told = VirtualTime(), Cases.of(planned, 120), list[float]()
    machine = replace(planned, pools=tuple(CachePool(cases.num_blocks, pool.window) for pool in planned.pools))
    runner = CostRunner(machine, costs, time)
    return measure_costs(runner, planned, cases, lambda _, part: told.append(part), time), told


@pytest.mark.parametrize("costs", [COSTS, SLOW_ROWS])
def test_a_calibration_finds_what_steps_cost(costs: StepCosts) -> None:
    found, _ = calibrated(replica(), costs)
    works = [StepWork(rows, rows, (float(rows * context),), (0.0,)) for rows in (1, 2, 5, 8) for context in (10, 100)]
    works += [StepWork(size, 1, (0.0,), (size * 60.0,)) for size in (16, 32, 48, 64)]
    works += [StepWork(4 + size, 5, (200.0,), (size * 60.0,)) for size in (8, 16, 32)]
    for work in works:
        assert found.seconds(work) == pytest.approx(costs.seconds(work), rel=0.1), work


def test_steps_of_a_few_rows_more_than_a_tile_are_known_to_be_dear() -> None:
    """And several prompts in a step are told from a long one, on a machine whose steps are uneven as real ones are."""
    paneled = StepCosts(
        tokens=((1, 0.02), (16, 0.03), (64, 0.08), (65, 0.12), (128, 0.15), (129, 0.19), (256, 0.30), (512, 0.60)),
        row_s=1e-4,
        context_s=(1e-6,),
        pair_s=(1e-8,),
        spread=(0.92, 0.97, 0.99, 1.0, 1.01, 1.03, 1.1),
    )
    found, _ = calibrated(replica(max_num_seqs=16, max_batch_tokens=512), paneled)
    for count, size in ((1, 64), (1, 65), (1, 68), (1, 128), (1, 132), (4, 128), (8, 64), (2, 128), (1, 512), (2, 256)):
        work = StepWork(count * size, count, (0.0,), (count * size * (size + 1) / 2,))
        assert found.seconds(work) == pytest.approx(paneled.seconds(work), rel=0.1), work


def test_progress_is_told_up_to_the_end() -> None:
    _, told = calibrated(replica(), COSTS)
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0.0, 1.0)


@pytest.mark.parametrize(
    "limits", [{"max_num_seqs": 1}, {"max_batch_tokens": 16}, {"max_num_seqs": 64, "max_batch_tokens": 512}]
)
def test_any_limits_can_be_measured(limits: dict[str, int]) -> None:
    found, _ = calibrated(replica(**limits), COSTS)
    work = StepWork(1, 1, (50.0,), (0.0,))
    assert found.seconds(work) == pytest.approx(COSTS.seconds(work), rel=0.1)


@pytest.mark.parametrize("context", [16, 64])
def test_a_short_context_can_be_measured(context: int) -> None:
    short = replica()
    found, _ = calibrated(replace(short, max_model_len=context), COSTS)
    assert found.deviation < 0.05


def test_layers_with_windows_have_costs_of_their_own() -> None:
    costs = replace_kinds(COSTS)
    two = replica()
    windowed = replace(two, pools=(*two.pools, CachePool(200, 16)), block_bytes=(1024, 512))
    found, _ = calibrated(windowed, costs)
    assert len(found.context_s) == 2
    assert found.deviation < 0.05


def replace_kinds(costs: StepCosts) -> StepCosts:
    return StepCosts(costs.tokens, costs.row_s, (1e-6, 2e-6), (1e-8, 1e-8))
