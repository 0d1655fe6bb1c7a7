"""Prompts are paced by measured durations: how long a step may take while sequences decode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.pacing import Pacer
from dragoman.engine.rolling.sample.sampler import Sampler
from tests.engine.fake_runner import FakeRunner
from tests.engine.naive import Collector, make_request

STEP_S, ROW_S, PROMPT_TOKEN_S = 0.010, 0.001, 0.0005  # a made-up machine


def observe(pacer: Pacer, num_decoding: int, num_prompt_tokens: int) -> None:
    seconds = STEP_S + ROW_S * num_decoding + PROMPT_TOKEN_S * num_prompt_tokens
    pacer.observe(num_decoding, num_prompt_tokens, seconds)


def test_without_a_limit_prompts_are_never_held_up() -> None:
    pacer = Pacer(0)
    observe(pacer, 4, 0)
    assert pacer.prompt_budget(4, 1) is None


def test_prompts_are_not_held_up_while_nobody_decodes() -> None:
    assert Pacer(2).prompt_budget(0, 1) is None


@pytest.mark.parametrize("max_slowdown", [-1, float("nan")])
def test_a_limit_that_makes_no_sense_is_refused(max_slowdown: float) -> None:
    with pytest.raises(ValueError, match=r"max_slowdown is .*, must be 0 \(no limit\) or more"):
        Pacer(max_slowdown)


def test_the_budget_is_what_the_slowdown_leaves_time_for() -> None:
    pacer = Pacer(3)
    observe(pacer, 0, 1000)  # a prompt alone: its step's fixed cost counts as the prompt's
    observe(pacer, 8, 0)
    for _ in range(40):
        budget = pacer.prompt_budget(8, 1)
        assert budget
        observe(pacer, 8, budget)
    decode_s = STEP_S + 8 * ROW_S
    assert pacer.prompt_budget(8, 1) == pytest.approx(2 * decode_s / PROMPT_TOKEN_S, rel=0.05)


def test_every_prompt_that_waits_brings_its_own_allowance() -> None:
    pacer = Pacer(3)
    observe(pacer, 0, 1000)
    observe(pacer, 8, 0)
    one, four = pacer.prompt_budget(8, 1), pacer.prompt_budget(8, 4)
    assert one
    assert four
    assert 4 * one <= four < 4 * (one + 1)
    assert pacer.prompt_budget(8, 0) is None


def test_a_decode_step_is_measured_first_and_again_after_a_while() -> None:
    pacer = Pacer(2)
    assert pacer.prompt_budget(5, 1) == 0
    observe(pacer, 5, 0)
    budgets = []
    for _ in range(300):
        budget = pacer.prompt_budget(5, 1)
        assert budget is not None
        budgets.append(budget)
        observe(pacer, 5, budget)
    assert budgets.count(0) == 1


def test_what_else_computes_for_a_while_leaves_the_pace_of_prompts_as_it_is() -> None:
    pacer = Pacer(3)
    observe(pacer, 0, 1000)
    for _ in range(60):
        observe(pacer, 8, 0)
    quiet = pacer.prompt_budget(8, 1)
    for _ in range(30):
        pacer.observe(8, 0, 10 * (STEP_S + 8 * ROW_S))  # a picture is embedded beside these steps
    assert pacer.prompt_budget(8, 1) == quiet
    for _ in range(60):
        pacer.observe(8, 0, 2 * (STEP_S + 8 * ROW_S))
    slower = pacer.prompt_budget(8, 1)
    assert quiet
    assert slower
    assert slower >= 2 * quiet, "what lasts is how it is"


def test_nothing_is_learned_from_disturbed_steps_but_what_is_not_known() -> None:
    is_disturbed = True
    pacer = Pacer(3, is_disturbed=lambda: is_disturbed)
    pacer.observe(8, 0, 0.1)
    pacer.observe(8, 100, 0.2)
    first = pacer.prompt_budget(8, 1)
    assert first == 200, "better than nothing"
    for _ in range(300):
        pacer.observe(8, 0, 10.0)
        pacer.observe(8, 50, 20.0)
    assert pacer.prompt_budget(8, 1) == first
    is_disturbed = False
    pacer.observe(8, 0, 10.0)  # it was, when the step was planned
    assert pacer.prompt_budget(8, 1) == first
    for _ in range(300):
        pacer.observe(8, 0, 0.2)
    assert pacer.prompt_budget(8, 1) == 2 * first


def test_a_prompt_gets_on_however_slow_the_machine() -> None:
    pacer = Pacer(1.5)
    pacer.observe(1, 0, 0.001)
    for _ in range(20):
        budget = pacer.prompt_budget(1, 1)
        assert budget
        pacer.observe(1, budget, 10.0)
    assert pacer.prompt_budget(1, 1) == 16


def test_where_a_step_with_prompts_is_dear_in_itself_pieces_do_not_dwindle() -> None:
    """A step with prompts takes 1.8 times one without, and an eighth more for each token. In pieces of 4, which take 2.3
    times, 64 tokens would take as long as 21 steps of decoding; in pieces of 16 as 11.
    """
    pacer = Pacer(2.5)
    pacer.observe(1, 0, 0.032)
    left, extra_s = 64, 0.0
    while left:
        budget = pacer.prompt_budget(1, 1)
        assert budget
        piece = min(budget, left)
        seconds = 0.058 + 0.004 * piece
        pacer.observe(1, piece, seconds)
        left, extra_s = left - piece, extra_s + seconds - 0.032
    assert extra_s < 12 * 0.032


class TimedRunner(FakeRunner):
    """A runner on the made-up machine: a forward takes time on its own clock."""

    now_s = 0.0

    def forward(self, batch: ForwardBatch) -> np.ndarray[Any, Any]:
        self.now_s += STEP_S + PROMPT_TOKEN_S * len(batch.input_ids)
        return super().forward(batch)


@pytest.mark.parametrize("max_slowdown", [0.0, 2.0, 3.0])
def test_streams_wait_no_longer_than_the_limit_while_a_long_prompt_prefills(
    max_slowdown: float,
) -> None:
    runner = TimedRunner(num_blocks=1600, block_size=4, vocab_size=24, max_model_len=4000)
    config = RollingConfig(512, max_slowdown=max_slowdown)
    collector = Collector(EngineCore(runner, Sampler(24), config, clock=lambda: runner.now_s))
    for key in range(4):
        collector.add(key, make_request([key + 1, 2, 3], max_tokens=400, ignore_eos=True))
    waits = []

    def step() -> None:
        begin_s = runner.now_s
        collector.step()
        waits.append(runner.now_s - begin_s)

    for _ in range(20):
        step()
    decode_s = waits[-1]
    waits.clear()
    collector.add(9, make_request([1 + i % 20 for i in range(1500)], max_tokens=2, ignore_eos=True))
    while not collector.outputs.get(9):
        step()
        assert not collector.errors
    slowest = max(waits) / decode_s
    if max_slowdown:
        assert slowest <= 1.05 * max_slowdown
        assert sum(waits) < 2 * (STEP_S * len(waits) + PROMPT_TOKEN_S * 1500), "and the prompt is not starved"
    else:
        assert slowest > 10
    collector.run()
