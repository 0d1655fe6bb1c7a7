"""Answers requests by the engine's step loop, alone or together, and compares answers. On the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.runner import ModelRunner
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.errors import EngineFailed, ServerError
from dragoman.types import EngineRequest, SamplingParams

CANDIDATES = 2  # most likely tokens kept with each token, to see near ties


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
        for key, one in enumerate(requests, first):
            self._core.inbox.put(AddRequest(key, one))
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


def difference(one: Answer, other: Answer) -> Difference:
    largest = 0.0
    for place, tokens in enumerate(zip(one.tokens, other.tokens, strict=True)):
        if tokens[0] != tokens[1]:
            return Difference(largest, place, max(one.gaps[place], other.gaps[place]))
        largest = max(largest, abs(one.logprobs[place] - other.logprobs[place]))
    return Difference(largest)
