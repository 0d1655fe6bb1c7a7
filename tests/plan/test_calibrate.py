"""The calibration, of services in virtual time: it finds the costs that their steps have."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest

from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.engine.rolling.forward.runner import StepWork
from dragoman.tools.plan.calibrate import Answer, Asked, CalibrationFailed, Cases, ask_all, costs_of
from dragoman.tools.plan.costs import StepCosts
from dragoman.tools.plan.simulate import Replica
from tests.plan.replicas import COSTS, replica
from tests.plan.virtual_service import VirtualService

SLOW_ROWS = StepCosts(
    tokens=((1, 0.04), (16, 0.05), (64, 0.2)), row_s=0.004, context_s=(5e-5,), pair_s=(2e-6,)
)  # logits and attention count as much as the rest


def asked_for(service: VirtualService, planned: Replica) -> tuple[Asked, list[float]]:
    """What a service was asked for, and what was reported."""
    told: list[float] = []
    cases = replace(Cases.of(planned, 80, 40), clients_s=1.0)
    return asyncio.run(ask_all(service, cases, lambda _, part: told.append(part), service.time)), told


def calibrated(planned: Replica, costs: StepCosts) -> StepCosts:
    service = VirtualService(planned, costs)
    asked, _ = asked_for(service, planned)
    return costs_of(service.steps, asked)


@pytest.mark.parametrize("costs", [COSTS, SLOW_ROWS])
def test_a_calibration_finds_what_steps_cost(costs: StepCosts) -> None:
    found = calibrated(replica(), costs)
    works = [StepWork(rows, rows, (float(rows * context),), (0.0,)) for rows in (1, 2, 5, 8) for context in (10, 100)]
    works += [StepWork(size, 1, (0.0,), (size * 60.0,)) for size in (16, 32, 48, 64)]
    works += [StepWork(4 + size, 5, (200.0,), (size * 60.0,)) for size in (8, 16, 32)]
    for work in works:
        assert found.seconds(work) == pytest.approx(costs.seconds(work), rel=0.1), work


def test_several_prompts_in_a_step_are_told_from_a_long_one() -> None:
    """On a machine whose steps are uneven as real ones are."""
    uneven = StepCosts(
        tokens=((1, 0.02), (16, 0.03), (64, 0.08), (128, 0.15), (256, 0.30), (512, 0.60)),
        row_s=1e-4,
        context_s=(1e-6,),
        pair_s=(1e-8,),
        slowness=tuple((0.05, share) for share in (0.92, 1.0, 0.97, 1.03, 0.99, 1.1, 1.01)),
    )
    found = calibrated(replica(max_num_seqs=16, max_batch_tokens=512), uneven)
    for count, size in ((1, 64), (1, 68), (1, 128), (1, 132), (4, 128), (8, 64), (2, 128), (1, 512), (2, 256)):
        work = StepWork(count * size, count, (0.0,), (count * size * (size + 1) / 2,))
        assert found.seconds(work) == pytest.approx(uneven.seconds(work), rel=0.1), work
    shares = [share for _, share in found.slowness]
    assert 1.05 < max(shares) / min(shares) < 1.5


def test_what_it_costs_that_steps_differ_is_found() -> None:
    """As it is simulated: by the number of tokens of the step before."""
    costs = msgspec.structs.replace(COSTS, change_s=0.005)
    found = calibrated(replica(), costs)
    assert found.change_s == pytest.approx(0.005, rel=0.1)
    alone = StepWork(1, 1, (20.0,), (0.0,))
    assert found.seconds(alone) == pytest.approx(costs.seconds(alone), rel=0.1)


def test_nobody_is_left_behind_and_progress_is_told_up_to_the_end() -> None:
    planned = replica()
    service = VirtualService(planned, COSTS)
    asked, told = asked_for(service, planned)
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0.0, 1.0)
    assert service.num_given_up > 0  # those that decode beside, and the clients whose time is up
    assert all(begin_s < end_s for begin_s, end_s in asked.in_service)


def test_every_client_has_an_answer_however_slow_the_machine() -> None:
    """Their time is up at once, on the clock of this machine."""
    service, answered = VirtualService(replica(), COSTS), []

    class Noting:
        async def ask(self, prompt_tokens: int, output_tokens: int) -> Answer:
            answer = await service.ask(prompt_tokens, output_tokens)
            answered.append(prompt_tokens)
            return answer

    cases = Cases((1,), (), (), long=8, clients=(4,), usual=(40, 10), longest=100, clients_s=1e-6)
    asyncio.run(ask_all(Noting(), cases, lambda stage, part: None))
    assert sum(20 <= prompt_tokens <= 60 for prompt_tokens in answered) >= 2 * 4  # in each of two rounds


@pytest.mark.parametrize(
    "limits",
    [
        {"max_num_seqs": 1},
        pytest.param({"max_batch_tokens": 16}, marks=pytest.mark.full("thousands of simulated steps")),
        pytest.param({"max_num_seqs": 64, "max_batch_tokens": 512}, marks=pytest.mark.full("the same")),
    ],
)
def test_any_limits_can_be_measured(limits: dict[str, int]) -> None:
    found = calibrated(replica(**limits), COSTS)
    work = StepWork(1, 1, (50.0,), (0.0,))
    assert found.seconds(work) == pytest.approx(COSTS.seconds(work), rel=0.1)


@pytest.mark.parametrize("context", [16, 64])
def test_a_short_context_can_be_measured(context: int) -> None:
    found = calibrated(replace(replica(), max_model_len=context), COSTS)
    assert found.deviation < 0.05


def test_layers_with_windows_have_costs_of_their_own() -> None:
    costs = StepCosts(COSTS.tokens, COSTS.row_s, (1e-6, 2e-6), (1e-8, 1e-8))
    two = replica()
    windowed = replace(two, pools=(*two.pools, CachePool(200, 16)), block_bytes=(1024, 512))
    found = calibrated(windowed, costs)
    assert len(found.context_s) == 2
    assert found.deviation < 0.05


def test_what_clients_wait_besides_the_steps_is_told_by_those_without_company() -> None:
    service = VirtualService(replica(), COSTS, http_s=0.004)
    asked, _ = asked_for(service, replica())
    assert costs_of(service.steps, asked).http_s == pytest.approx(0.004)
    assert costs_of(service.steps).http_s == 0.0


def test_a_log_of_service_alone_is_enough() -> None:
    """Of a server that nobody asked for anything in particular."""
    service = VirtualService(replica(), COSTS)

    async def some() -> None:
        await asyncio.gather(*(service.ask(20 + number, 10) for number in range(12)))

    asyncio.run(some())
    found = costs_of(service.steps)
    for step in service.steps:
        assert found.seconds(step.work) == pytest.approx(step.seconds, rel=0.05)


def test_a_log_without_steps_or_of_several_models_is_refused() -> None:
    with pytest.raises(CalibrationFailed, match="it holds no steps"):
        costs_of([])
    service = VirtualService(replica(), COSTS)
    asyncio.run(service.ask(20, 3))
    step = service.steps[-1]
    other = msgspec.structs.replace(step, work=StepWork(1, 1, (1.0, 1.0), (0.0, 0.0)))
    with pytest.raises(CalibrationFailed, match="of one model"):
        costs_of([step, other])


def test_a_failure_ends_the_calibration() -> None:
    class Failing(VirtualService):
        async def ask(self, prompt_tokens: int, output_tokens: int) -> Answer:
            if len(self.steps) > 300:
                raise CalibrationFailed("the server broke off")
            return await super().ask(prompt_tokens, output_tokens)

    with pytest.raises(CalibrationFailed, match="broke off"):
        asked_for(Failing(replica(), COSTS), replica())
