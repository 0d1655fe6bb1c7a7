"""Work that can wait costs others a twentieth of their speed at most, and gets on all the same."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.pacing import BackgroundAccount, StepParts
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.types import EngineRequest
from tests.engine.fake_runner import FakeRunner
from tests.engine.naive import Collector, make_request

STEP_S, TOKEN_S = 0.010, 0.0005  # of the made-up machine


class TimedRunner(FakeRunner):
    """A runner on the made-up machine: a forward takes time on its own clock."""

    row_s = 0.001
    now_s = 0.0

    def forward(self, batch: ForwardBatch) -> np.ndarray[Any, Any]:
        num_rows = len(batch.past_lens)
        self.now_s += STEP_S + self.row_s * num_rows + TOKEN_S * (len(batch.input_ids) - num_rows)
        return super().forward(batch)


def waiting(prompt: list[int], max_tokens: int) -> EngineRequest:
    request = make_request(prompt, max_tokens=max_tokens, ignore_eos=True)
    return msgspec.structs.replace(request, is_background=True)


def machine(row_s: float = 0.001, num_blocks: int = 4000, **config: Any) -> tuple[TimedRunner, Collector]:
    runner = TimedRunner(num_blocks=num_blocks, block_size=4, vocab_size=24, max_model_len=4000)
    runner.row_s = row_s
    settings = RollingConfig(512, max_slowdown=2.5, **config)
    return runner, Collector(EngineCore(runner, Sampler(24), settings, clock=lambda: runner.now_s))


def flood(collector: Collector, num_requests: int, num_prompt_tokens: int = 40) -> None:
    for key in range(100, 100 + num_requests):
        collector.add(key, waiting([1 + (key + i) % 20 for i in range(num_prompt_tokens)], 30))


def seconds_of_a_stream(runner: TimedRunner, collector: Collector) -> tuple[float, float]:
    """(Seconds until the first token, and from it to the last) of a stream that comes now."""
    begin_s = runner.now_s
    collector.add(1, make_request([5] * 60, max_tokens=300, ignore_eos=True))
    while not collector.outputs.get(1):
        collector.step()
    first_s = runner.now_s
    while collector.sequence(1).finish_reason is None:
        collector.step()
    assert not collector.errors
    return first_s - begin_s, runner.now_s - first_s


@pytest.mark.parametrize("num_prompt_tokens", [2, 40, 900])
def test_a_flood_in_the_background_costs_a_stream_a_twentieth(num_prompt_tokens: int) -> None:
    first_s, quiet_s = seconds_of_a_stream(*machine())
    runner, collector = machine()
    flood(collector, 400, num_prompt_tokens)
    for _ in range(20):
        collector.step()
    num_before = sum(len(outputs) for outputs in collector.outputs.values())
    first_beside_s, beside_s = seconds_of_a_stream(runner, collector)
    assert beside_s <= 1.06 * quiet_s
    assert first_beside_s <= first_s + 0.3, "it waits for the step that runs, and is then computed first"
    num_after = sum(len(outputs) for key, outputs in collector.outputs.items() if key >= 100)
    assert num_after > num_before or num_prompt_tokens > 100, "and the flood gets on meanwhile"


def test_rows_that_cost_nothing_are_computed_in_every_step() -> None:
    _, collector = machine(row_s=0.0)
    flood(collector, 16)
    for _ in range(10):
        collector.step()
    collector.add(1, make_request([5, 6], max_tokens=40, ignore_eos=True))
    while collector.sequence(1).finish_reason is None:
        collector.step()
    assert all(len(collector.sequence(key).token_ids) >= 25 for key in range(100, 116))


def test_places_and_blocks_of_the_background_are_anybodys() -> None:
    for places, num_blocks in ((4, 4000), (64, 60)):
        _, collector = machine(num_blocks=num_blocks, max_num_seqs=places)
        flood(collector, 8)
        for _ in range(5):
            collector.step()
        collector.add(1, make_request([5] * 100, max_tokens=3, ignore_eos=True))
        for _ in range(2):
            collector.step()
        assert collector.outputs.get(1), "it is computed in the next steps"
        collector.run()
        assert all(len(collector.sequence(key).token_ids) == 30 for key in range(100, 108))


def test_background_alone_is_not_held_back() -> None:
    runner, collector = machine()
    flood(collector, 32)
    collector.run()
    num_tokens = 32 * 30
    assert runner.now_s < 1.3 * (STEP_S * 34 + 0.001 * num_tokens + TOKEN_S * 32 * 40)


def test_a_slow_moment_is_not_held_against_the_background_for_ever() -> None:
    account = BackgroundAccount()
    plain, mixed = StepParts(1, 0, 0, 0), StepParts(1, 0, 1, 0)
    account.observe(plain, 0.0, STEP_S)
    account.observe(mixed, 0.0, 100.0)
    num_steps = 0
    while not account.room_beside(1, 0.0).num_tokens(is_decoding=True):
        account.observe(plain, 0.0, STEP_S)
        account.observe(mixed, 0.0, STEP_S)
        num_steps += 1
        assert num_steps < 2000
