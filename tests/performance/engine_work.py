"""Fixed pieces of work for the engine's step loop, and what they cost in instructions.

Does: drive an EngineCore in this thread, count whole steps. Does not: judge the numbers (the tests do), nor leave the
process: what counts is run by a CountingProcess.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.engine.rolling.speculate.copied_text import OwnTextProposer, RecentTextsProposer
from dragoman.engine.rolling.speculate.proposer import ForcedTokensProposer, Proposer
from dragoman.errors import ServerError
from dragoman.types import EngineRequest, SamplingParams
from tests.performance.counter import InstructionCounter
from tests.performance.counts import Counts
from tests.performance.runners import BLOCK_SIZE, TableRunner

NUM_STEPS = BLOCK_SIZE  # counted: in as many steps every sequence takes exactly one new block


@dataclass
class EngineWork:
    """A number of like requests. `sampling`: keyword arguments of SamplingParams, greedy without.

    `guesses`: texts are searched for guesses in every step. None is verified, as the clock stands still, so that no step is
    known to take any time; with `verifies` each look at it takes one of its ticks, so that all steps take as long and all
    guesses pay.
    """

    rows: int
    prompt_size: int = 48
    max_batch_tokens: int = 16_384
    sampling: dict[str, Any] = field(default_factory=dict)
    guesses: bool = False
    verifies: bool = False


class EngineRun:
    """The work in progress: `answers` are the tokens of each request so far, `runner.forwards` what was computed."""

    def __init__(self, work: EngineWork, max_tokens: int) -> None:
        self.runner = TableRunner()
        # No pacing: pieces of prompts must follow from the budget, not from the clock.
        config = RollingConfig(max_batch_tokens=work.max_batch_tokens, max_num_seqs=work.rows, max_slowdown=0)
        sampler = Sampler(self.runner.vocab_size)
        if work.guesses:
            proposers: list[Proposer] = [ForcedTokensProposer(), OwnTextProposer(), RecentTextsProposer()]
            ticks = count(step=int(work.verifies))
            self.core = EngineCore(self.runner, sampler, config, proposers, clock=lambda: float(next(ticks)))
        else:
            self.core = EngineCore(self.runner, sampler, config)
        self.answers: dict[int, list[int]] = {key: [] for key in range(work.rows)}
        params = SamplingParams(**{"temperature": 0.0, **work.sampling})
        for key, prompt in enumerate(prompts_of(work)):
            request = EngineRequest(f"r{key}", prompt, params, max_tokens, seed=key + 1)
            self.core.inbox.put(AddRequest(key, request))

    def step(self) -> None:
        """One step; its outputs are kept."""
        for key, item in self.core.step():
            if isinstance(item, ServerError):
                raise item
            self.answers[key] += item.token_ids

    def run_to(self, num_tokens: int) -> None:
        """Step until every request has that many tokens."""
        while any(len(answer) < num_tokens for answer in self.answers.values()):
            self.step()

    def finish(self) -> None:
        """Step until every request has finished."""
        self.step()
        while self.core.has_work():
            self.step()


def prompts_of(work: EngineWork) -> list[tuple[int, ...]]:
    """The prompts: all different from the first token on, so that none shares a block with another."""
    return [tuple((key + i * (2 * key + 1)) % 251 for i in range(work.prompt_size)) for key in range(work.rows)]


def count_decode(work: EngineWork, num_before: int = 16) -> Counts:
    """The cost of NUM_STEPS steps in which every row decodes, after `num_before` tokens each."""
    warm_up(work)
    run = EngineRun(work, num_before + NUM_STEPS + 8)
    run.run_to(num_before)
    first = len(run.runner.forwards)
    counter = InstructionCounter()
    with counter.watch():
        for _ in range(NUM_STEPS):
            run.step()
    assert [len(answer) for answer in run.answers.values()] == [num_before + NUM_STEPS] * work.rows
    assert [forward.row_sizes for forward in run.runner.forwards[first:]] == [(1,) * work.rows] * NUM_STEPS
    return counter.counts()


def count_verified(work: EngineWork, num_before: int, num_tokens: int) -> tuple[Counts, int]:
    """The cost of the steps until every request has so many more tokens than `num_before`, and how many came of them."""
    warm_up(work)
    run = EngineRun(work, num_before + 2 * num_tokens)
    run.run_to(num_before)
    first = sum(map(len, run.answers.values()))
    counter = InstructionCounter()
    with counter.watch():
        run.run_to(num_before + num_tokens)
    stats = run.core.stats
    assert stats.num_accepted_tokens > stats.num_draft_tokens / 2, "texts that repeat themselves are foreseen"
    return counter.counts(), sum(map(len, run.answers.values())) - first


def count_prefill(work: EngineWork) -> Counts:
    """The cost of taking the requests in and computing their prompts, up to the first token of each."""
    warm_up(work)
    run = EngineRun(work, 8)
    counter = InstructionCounter()
    with counter.watch():
        run.run_to(1)
    return counter.counts()


def warm_up(work: EngineWork) -> None:
    """Run something like it once, so that nothing is imported or made for the first time while it counts."""
    EngineRun(EngineWork(2, sampling=work.sampling, guesses=work.guesses, verifies=work.verifies), 4).finish()
