"""Measures what steps cost on this machine: loads the model and runs the engine's step loop on made-up requests.

Does: steps of 1, 2, 4, ... sequences that decode, pieces of prompts, several of them, both together, short and long
contexts; fit the costs.
Does not: simulate, or serve. Called by the plan, on the main thread; nothing else should compute meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dragoman.engine.factory import EngineSetup
from dragoman.engine.rolling.blocks.window import blocks_for
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.factory import factory
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import ForwardBatch, ModelRunner
from dragoman.engine.rolling.inbox import AbortRequest, AddRequest
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.errors import ServerError
from dragoman.plan.costs import StepCosts, StepWork, fit_costs
from dragoman.plan.replica import Replica
from dragoman.plan.workload import GREEDY
from dragoman.types import EngineRequest

_SHORT_PROMPT = 8  # tokens of those that only are there to decode
_SMALLEST_PIECE = 16
_NUM_LONG = 4  # sequences with a long context
# Tokens of it: costs grow evenly with the context, and are the surer the longer it is, but computing it takes time.
_LONG, _LONGEST = 512, 1024
_DECODE_STEPS = 4
_REPEATS = 2
# Everything is measured so many times, in another order each time: a machine is slower in one second than in the next, and
# what was measured in a slow one alone would be thought dear.
_NUM_ROUNDS = 3
# Prompts that share a step: without such steps, tokens and what they see would only be known together.
_NUM_TOGETHER = 4
_LEAST_ANSWER = 64  # tokens of those that decode while others' prompts are computed


class StepFailed(RuntimeError):
    """A step of the calibration did not work."""


class _WatchingRunner:
    """A ModelRunner that remembers the work of its last step."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.block_size, self.pools, self.vocab_size = runner.block_size, runner.pools, runner.vocab_size
        self.max_model_len, self.long_context_from = runner.max_model_len, runner.long_context_from
        self._work: StepWork | None = None

    def take_work(self) -> StepWork | None:
        """The work of the last step, None if there was none since the last call."""
        work, self._work = self._work, None
        return work

    def forward(self, batch: ForwardBatch) -> npt.NDArray[np.float32]:
        """As the runner does."""
        self._work = StepWork.of(batch)
        return self._runner.forward(batch)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]], kind: int = 0) -> None:
        """As the runner does."""
        self._runner.copy_blocks(pairs, kind)

    def close(self) -> None:
        """As the runner does."""
        self._runner.close()


class Report(Protocol):
    """Is told how far the measuring is."""

    def __call__(self, stage: str, fraction: float, /) -> None: ...


@dataclass(slots=True)
class _Bench:
    """The step loop, and what its steps took. The first step of every shape is left out: kernels are chosen then.

    `answer_tokens`: of those that only are there to decode.
    """

    core: EngineCore
    runner: _WatchingRunner
    max_model_len: int
    answer_tokens: int
    clock: Callable[[], float]
    works: list[StepWork] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    _shapes: set[tuple[int, int]] = field(default_factory=set)
    _num_requests: int = 0

    def ask(self, prompt_tokens: int, output_tokens: int | None = None) -> int:
        """Add a request whose prompt no other has; its key."""
        key = self._num_requests
        self._num_requests += 1
        ids = np.random.default_rng(key).integers(self.runner.vocab_size, size=prompt_tokens)
        max_tokens = min(output_tokens or self.answer_tokens, self.max_model_len - prompt_tokens)
        request = EngineRequest(str(key), tuple(ids.tolist()), GREEDY, max_tokens, seed=0)
        self.core.inbox.put(AddRequest(key, request))
        return key

    def step(self) -> set[int]:
        """One step; the keys of those that got something from it. Raises: StepFailed."""
        begin = self.clock()
        deliveries = self.core.step()
        seconds = self.clock() - begin
        for _, item in deliveries:
            if isinstance(item, ServerError):
                raise StepFailed(f"a step failed: {item}") from item
        work = self.runner.take_work()
        if work is not None:
            shape = (work.num_tokens, work.num_rows)
            if shape in self._shapes:
                self.works.append(work)
                self.seconds.append(seconds)
            self._shapes.add(shape)
        return {key for key, _ in deliveries}

    def stop(self, keys: Sequence[int]) -> None:
        """End these requests."""
        for key in keys:
            self.core.inbox.put(AbortRequest(key))
        self.core.step()

    def decode(self, num_sequences: int, prompt_tokens: int) -> list[int]:
        """Have so many sequences decode, for some steps; their keys."""
        keys = [self.ask(prompt_tokens) for _ in range(num_sequences)]
        waiting = set(keys)
        while waiting:
            waiting -= self.step()
        for _ in range(_DECODE_STEPS):
            self.step()
        return keys

    def compute_prompts(self, prompt_tokens: int, count: int = 1) -> None:
        """Requests with a prompt and one token, beside whoever decodes."""
        waiting = {self.ask(prompt_tokens, 1) for _ in range(count)}
        while waiting:
            waiting -= self.step()


def calibrate(setup: EngineSetup, planned: Replica, num_tokens: int, report: Report) -> StepCosts:
    """The costs of the model's steps on this machine. `planned`: the limits that count; `num_tokens`: of the usual sequence.

    Raises: ModelError or EngineOptionError if the model cannot be loaded, StepFailed.
    """
    cases = Cases.of(planned, num_tokens)
    loaded = factory.load(setup)
    runner = OpenVinoRunner(loaded.model, cases.num_blocks)
    try:
        return measure_costs(runner, planned, cases, report)
    finally:
        runner.close()


@dataclass(frozen=True, slots=True)
class Cases:
    """What is measured. `counts`: of sequences that decode. `pieces`: of prompts. `parts`: prompts of which
    several fill a step. `long`: the long context. In tokens.

    `answer_tokens`: of those that only are there to decode. `num_blocks`: what all that takes of each cache kind.
    """

    counts: tuple[int, ...]
    pieces: tuple[int, ...]
    parts: tuple[int, ...]
    long: int
    answer_tokens: int
    num_blocks: int

    @classmethod
    def of(cls, planned: Replica, num_tokens: int) -> Cases:
        """Those that tell what a replica with these limits costs."""
        limits, size = planned.limits, planned.block_size
        long = max(min(max(num_tokens, _LONG), _LONGEST, planned.max_model_len // 2), _SHORT_PROMPT)
        counts = _powers(1, min(limits.max_num_seqs, planned.num_sequences(2 * size)))
        powers = _powers(_SMALLEST_PIECE, limits.max_batch_tokens)
        sizes = sorted({*powers, *(power + 1 for power in powers[:-1])})  # kernels compute rows in panels of such sizes
        pieces = [size for size in sizes if size < planned.max_model_len]
        parts = {size // _NUM_TOGETHER for size in sizes if size >= _NUM_TOGETHER * _SMALLEST_PIECE}
        parts = {part for part in parts if part < planned.max_model_len and counts[-1] >= _NUM_TOGETHER}
        answer_tokens = _LEAST_ANSWER + 2 * (_NUM_LONG * long + _REPEATS * sum(pieces)) // limits.max_batch_tokens
        many, few = counts[-1] * blocks_for(_SHORT_PROMPT + answer_tokens, size), blocks_for(long + answer_tokens, size)
        num_blocks = max(many, _NUM_LONG * few) + 2 * blocks_for(limits.max_batch_tokens, size)
        return cls(tuple(counts), tuple(pieces), tuple(sorted(parts)), long, answer_tokens, num_blocks)


def measure_costs(
    runner: ModelRunner, planned: Replica, cases: Cases, report: Report, clock: Callable[[], float] = perf_counter
) -> StepCosts:
    """The costs of a runner's steps, in the seconds of `clock`. Raises: StepFailed."""
    # Every size is measured: nothing is paced, held back or found in a cache.
    free = replace(
        planned.limits,
        max_slowdown=0.0,
        best_step_tokens=None,
        panel_tokens=None,
        prefix_cache="off",
        assumed_output_tokens=1,
    )
    watching = _WatchingRunner(runner)
    core = EngineCore(watching, Sampler(runner.vocab_size), free, clock=clock)
    bench = _Bench(core, watching, planned.max_model_len, cases.answer_tokens, clock)
    try:
        _measure(bench, cases, report)
    finally:
        core.close()
    return fit_costs(bench.works, bench.seconds)


def _measure(bench: _Bench, cases: Cases, report: Report) -> None:
    """Run all that is to be measured, in rounds."""
    todo = _stages(bench, cases)
    order = random.Random(0)
    report("measuring steps", 0.0)
    for number in range(_NUM_ROUNDS):
        for done, stage in enumerate(order.sample(todo, len(todo)), start=1):
            stage()
            report("measuring steps", (number + done / len(todo)) / _NUM_ROUNDS)


def _stages(bench: _Bench, cases: Cases) -> list[Callable[[], None]]:
    """What a round consists of, each to be run by itself; none leaves a sequence behind."""
    counts, pieces = cases.counts, cases.pieces
    num_beside = max(min(counts[-1] // 2, _NUM_LONG), 1)
    besides = sorted({piece // 2 for piece in pieces}) if counts[-1] > num_beside else []

    def decode(count: int, prompt_tokens: int) -> None:
        bench.stop(bench.decode(count, prompt_tokens))

    def compute(prompt_tokens: int, count: int) -> None:
        for _ in range(_REPEATS):
            bench.compute_prompts(prompt_tokens, count)

    def compute_beside() -> None:
        keys = bench.decode(num_beside, _SHORT_PROMPT)
        for piece in besides:
            compute(piece, 1)
        bench.stop(keys)

    stages = [partial(decode, count, _SHORT_PROMPT) for count in counts]
    stages += [partial(compute, piece, 1) for piece in pieces]
    stages += [partial(compute, part, _NUM_TOGETHER) for part in cases.parts]
    stages.append(partial(decode, min(_NUM_LONG, counts[-1]), cases.long))
    return [*stages, compute_beside]


def _powers(least: int, most: int) -> list[int]:
    """The powers of two in this range, which begins with one, and its end."""
    found = []
    while least < most:
        found.append(least)
        least *= 2
    return [*found, max(most, 1)]
