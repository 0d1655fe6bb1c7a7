"""The requests to the replicas: their arrivals, and their common beginnings, drawn from a fixed seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from dragoman.types import EngineRequest, SamplingParams

GREEDY = SamplingParams(temperature=0.0)
NO_PREFIX = -1
_NUM_IDS = 2**31  # of made-up tokens: prompts must differ, but are not computed

Weights = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that arrive at random, `rate` a second on average (Poisson), each of the same lengths in tokens.

    The first `prefix_tokens` of a prompt are one of `num_prefixes` beginnings. The n-th is asked for 1/n times as often
    as the first (Zipf).
    """

    rate: float
    prompt_tokens: int
    output_tokens: int
    num_requests: int = 400
    prefix_tokens: int = 0
    num_prefixes: int = 1
    seed: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request and its time. `prefix`: the number of its beginning, NO_PREFIX = a unique one."""

    number: int
    time_s: float
    prefix: int = NO_PREFIX


def popularity(num_prefixes: int) -> Weights:
    """The shares of the prefixes among requests. Shapes: [num_prefixes]."""
    weights = 1 / np.arange(1, num_prefixes + 1)
    shares: Weights = weights / weights.sum()
    return shares


def arrivals(workload: Workload, weights: Weights | None = None) -> list[Arrival]:
    """The requests in the order of their arrival; `weights`: the frequency of each prefix, None = its popularity."""
    clock, time_s = random.Random(workload.seed + 1), 0.0
    prefixes = draw_prefixes(workload, workload.num_requests, weights, stream=2)
    found = []
    for number, prefix in enumerate(prefixes):
        time_s += clock.expovariate(workload.rate)
        found.append(Arrival(number, time_s, prefix))
    return found


def draw_prefixes(workload: Workload, count: int, weights: Weights | None, stream: int) -> list[int]:
    """The prefixes of `count` requests; each `stream` has its own draws."""
    if not workload.prefix_tokens:
        return [NO_PREFIX] * count
    shares = popularity(workload.num_prefixes) if weights is None else weights
    dice = np.random.default_rng((workload.seed, stream))
    drawn: list[int] = dice.choice(len(shares), size=count, p=shares).tolist()
    return drawn


def request_of(workload: Workload, number: int, prefix: int) -> EngineRequest:
    """The request for an engine; after the prefix, the prompt is unique for each number."""
    head: tuple[int, ...] = ()
    if prefix != NO_PREFIX:
        head = _prefix_ids(workload.seed, prefix, workload.prefix_tokens)
    tail = np.random.default_rng((workload.seed, 4, number)).integers(_NUM_IDS, size=workload.prompt_tokens - len(head))
    return EngineRequest(str(number), (*head, *tail.tolist()), GREEDY, workload.output_tokens, seed=0)


@cache
def _prefix_ids(seed: int, prefix: int, count: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng((seed, 3, prefix)).integers(_NUM_IDS, size=count).tolist())
