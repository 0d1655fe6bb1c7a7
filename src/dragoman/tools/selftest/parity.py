"""Checks that an answer does not depend on its neighbours, the cuts of its prompt, or repetition.

Requests run in the engine's step loop, alone or together, on the calling thread. Kernels may round differently for
batches of different sizes, so log-probabilities may differ by the tolerance. Within it, either of two tokens may be the
most likely one. The same batch computed twice must give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import reduce
from time import perf_counter

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.runner import ModelRunner
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.errors import EngineFailed, ServerError
from dragoman.tools.selftest.checks import Check
from dragoman.types import EngineRequest, SamplingParams

ANSWER = 16  # tokens
LONG_ANSWER = 48  # of the neighbours, longer than the others
SMALL_STEP = 48  # tokens of a step that cuts prompts
SEED = 20_240_229
CANDIDATES = 2  # most likely tokens kept with each token, to see near ties


@dataclass(frozen=True, slots=True)
class Parity:
    """The setup of the comparisons: `prompts` as tokens, the longest first. `tolerance` in nats."""

    runner: ModelRunner
    limits: RollingConfig
    prompts: Sequence[Sequence[int]]
    tolerance: float

    def checks(self) -> Iterator[Check]:
        """All checks. Raises: ServerError if the engine fails."""
        alone = [self._alone(index) for index in range(len(self.prompts))]
        yield self._company("batched as alone", alone, self._together(self.limits))
        cutting = replace(self.limits, max_batch_tokens=SMALL_STEP)
        yield self._company("prompt in pieces as whole", alone, self._together(cutting))
        yield self._cached(alone[0])
        yield self._twice("same answer twice", None)
        yield self._twice("same seed twice", SEED)
        yield self._neighbours()

    def _alone(self, index: int, seed: int | None = None) -> Answer:
        with self._loop(self.limits) as loop:
            return loop.answers([request("alone", self.prompts[index], ANSWER, seed)])[0]

    def _together(self, limits: RollingConfig, seed: int | None = None) -> list[Answer]:
        with self._loop(limits) as loop:
            return loop.answers([request(str(i), prompt, ANSWER, seed) for i, prompt in enumerate(self.prompts)])

    def _cached(self, fresh: Answer) -> Check:
        """Check that a repeated prompt is found in the cache and gets the same answer."""
        name = "cached prefix as fresh"
        limits = replace(self.limits, prefix_cache="prompt")
        with self._loop(limits) as loop:
            loop.answers([request("first", self.prompts[0], 1)])
            [again] = loop.answers([request("again", self.prompts[0], ANSWER)])
        if not again.num_cached:
            return Check(name, "skipped", why="this model's prompts are not cached")
        return self._company(name, [fresh], [again])

    def _twice(self, name: str, seed: int | None) -> Check:
        first, second = self._together(self.limits, seed), self._together(self.limits, seed)
        same = all(
            answer.tokens == other.tokens and answer.logprobs == other.logprobs
            for answer, other in zip(first, second, strict=True)
        )
        found = "the same" if same else _words(_largest(first, second))
        why = "the same requests in the same company had other answers the second time"
        return Check.judged(name, same, found, "the same to the bit", why)

    def _neighbours(self) -> Check:
        """Check that a drawn answer does not depend on its neighbours: it has its own random numbers."""
        drawn = self._alone(0, SEED)
        with self._loop(self.limits) as loop:
            others = [request(str(i), prompt, LONG_ANSWER, i) for i, prompt in enumerate(self.prompts[1:])]
            beside = loop.answers([request("drawn", self.prompts[0], ANSWER, SEED), *others])[0]
        found = difference(drawn, beside)
        is_ok = found.logprob <= self.tolerance
        why = "neighbours change the probabilities of a drawn answer"
        return Check.judged("same seed beside others", is_ok, _words(found), self._allowed(), why)

    def _company(self, name: str, answers: Sequence[Answer], others: Sequence[Answer]) -> Check:
        found = _largest(answers, others)
        is_near = found.diverged is None or found.gap <= 2 * self.tolerance
        is_ok = found.logprob <= self.tolerance and is_near
        why = "answers depend on what is computed with them by more than rounding"
        return Check.judged(name, is_ok, _words(found), self._allowed(), why)

    def _allowed(self) -> str:
        return f"{self.tolerance:g} nats"

    def _loop(self, limits: RollingConfig) -> closing[StepLoop]:
        return closing(StepLoop(self.runner, limits))


def _largest(answers: Sequence[Answer], others: Sequence[Answer]) -> Difference:
    pairs = (difference(answer, other) for answer, other in zip(answers, others, strict=True))
    return reduce(Difference.or_larger, pairs)


def _words(found: Difference) -> str:
    text = f"{found.logprob:.2g} nats"
    if found.diverged is not None:
        text += f", other tokens from {found.diverged} on at a gap of {found.gap:.2g}"
    return text


@dataclass(slots=True)
class Answer:
    """The tokens of one answer. `gaps`: between the most likely token and the next, in nats."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    num_cached: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two answers. `logprob`: the largest one in nats, while their tokens are equal.

    `diverged`: the first place with different tokens, None = nowhere; `gap`: the larger gap of both there.
    """

    logprob: float = 0.0
    diverged: int | None = None
    gap: float = 0.0

    def or_larger(self, other: Difference) -> Difference:
        first = self if self.diverged is not None else other
        return Difference(max(self.logprob, other.logprob), first.diverged, max(self.gap, other.gap))


def request(name: str, prompt: Sequence[int], length: int, seed: int | None = None) -> EngineRequest:
    """A request for `length` tokens, drawn with a seed or greedy."""
    temperature = 0.0 if seed is None else 1.0
    sampling = SamplingParams(temperature=temperature, logprobs=CANDIDATES, ignore_eos=True, seed=seed)
    return EngineRequest(name, tuple(prompt), sampling, length, seed=seed or 0)


class StepLoop:
    """The step loop over a runner, with separate limits. Loops share no cache."""

    def __init__(self, runner: ModelRunner, limits: RollingConfig) -> None:
        self._core = EngineCore(runner, Sampler(runner.vocab_size), limits)
        self._num_requests = 0

    def answers(
        self, requests: Sequence[EngineRequest], on_step: Callable[[float, int], None] | None = None
    ) -> list[Answer]:
        """The answers to requests that run together. `on_step` gets each step's seconds and rows. Raises: ServerError."""
        first = self._num_requests
        self._num_requests += len(requests)
        answers = [Answer() for _ in requests]
        for key, request in enumerate(requests, first):
            self._core.inbox.put(AddRequest(key, request))
        num_running = len(requests)
        while num_running:
            begin = perf_counter()
            deliveries = self._core.step()
            seconds = perf_counter() - begin
            if on_step is not None:
                on_step(seconds, len(deliveries))
            for key, output in deliveries:
                if isinstance(output, ServerError):
                    raise output
                if output.logprobs is None or output.top_logprobs is None:
                    raise EngineFailed("the engine returns no log-probabilities")
                answer = answers[key - first]
                answer.num_cached += output.num_cached_tokens
                answer.tokens += output.token_ids
                answer.logprobs += output.logprobs
                answer.gaps += [top[0].logprob - top[1].logprob for top in output.top_logprobs]
                num_running -= output.finish_reason is not None
        return answers

    def close(self) -> None:
        """Drop the loop's state; the runner stays open."""
        self._core.close()


def difference(answer: Answer, other: Answer) -> Difference:
    largest = 0.0
    for place, tokens in enumerate(zip(answer.tokens, other.tokens, strict=True)):
        if tokens[0] != tokens[1]:
            return Difference(largest, place, max(answer.gaps[place], other.gaps[place]))
        largest = max(largest, abs(answer.logprobs[place] - other.logprobs[place]))
    return Difference(largest)
