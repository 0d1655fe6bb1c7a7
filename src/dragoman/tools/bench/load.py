"""The load on a server: numbers of requests, their times and lengths, and the two ways of sending them.

Clients that wait for their answers are a closed loop, requests at fixed times an open one. Has the errors of a benchmark
as a whole. On the event loop.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from dragoman.tools.bench.answer import Sample

LoadKind = Literal["concurrency", "rate"]

Send = Callable[[int, float | None], Awaitable[Sample]]
"""Sends request `number` of the point, due at a time (None = now). Never raises."""


class BenchError(Exception):
    """The benchmark cannot run; one line for the user."""


class OptionError(BenchError):
    """An option has a wrong value. `option`: its name, such as `prompt_tokens`."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(problem)
        self.option = option


@dataclass(frozen=True, slots=True)
class Lengths:
    """A number of tokens, drawn evenly from `low` to `high`, both included."""

    low: int
    high: int

    def draw(self, dice: random.Random) -> int:
        return dice.randint(self.low, self.high) if self.low < self.high else self.low

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class Load:
    """One point of a sweep: `value` clients that each wait for their answer, or `value` requests a second."""

    kind: LoadKind
    value: float

    def __str__(self) -> str:
        return f"{self.kind} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Extent:
    """The end of a point: after `requests` or `duration_s`, whichever comes first; None = no such limit."""

    requests: int | None = None
    duration_s: float | None = None


def arrivals(rate: float, seed: int | str) -> Iterator[float]:
    """The requests' times in seconds from the start, without end: a Poisson process of `rate` a second."""
    dice, time_s = random.Random(seed), 0.0
    while True:
        time_s += dice.expovariate(rate)
        yield time_s


@dataclass(slots=True)
class Run:
    """A running point. `started`: sent requests; times on the clock `perf_counter`."""

    extent: Extent
    is_counted: bool = True  # False = it warms the server up
    begin_s: float = field(default_factory=time.perf_counter)
    end_s: float = 0.0
    started: int = 0
    samples: list[Sample] = field(default_factory=list)
    failed: int = 0

    @property
    def running(self) -> int:
        return self.started - len(self.samples)

    @property
    def fraction(self) -> float:
        """The finished share of the extent, from 0 to 1."""
        by_count = len(self.samples) / self.extent.requests if self.extent.requests else 0.0
        passed_s = time.perf_counter() - self.begin_s
        by_time = passed_s / self.extent.duration_s if self.extent.duration_s else 0.0
        return min(1.0, max(by_count, by_time))

    @property
    def duration_s(self) -> float:
        """Seconds from its beginning to its end, or to now."""
        return (self.end_s or time.perf_counter()) - self.begin_s

    def may_start(self, after_s: float) -> bool:
        """True if the extent has room for a request, `after_s` seconds from the beginning."""
        limit, duration_s = self.extent.requests, self.extent.duration_s
        return (limit is None or self.started < limit) and (duration_s is None or after_s < duration_s)

    def take(self) -> int:
        self.started += 1
        return self.started - 1

    async def send(self, send: Send, number: int, due_s: float | None) -> None:
        sample = await send(number, due_s)
        self.samples.append(sample)
        self.failed += bool(sample.error)


async def drive(run: Run, load: Load, send: Send, seed: str) -> None:
    """Send all requests of a point and wait for their answers. `seed`: of drawn arrivals."""
    run.begin_s = time.perf_counter()
    try:
        if load.kind == "concurrency":
            await _closed_loop(run, int(load.value), send)
        else:
            await _open_loop(run, load.value, send, seed)
    finally:
        run.end_s = time.perf_counter()


async def _closed_loop(run: Run, clients: int, send: Send) -> None:
    async def client() -> None:
        while run.may_start(time.perf_counter() - run.begin_s):
            await run.send(send, run.take(), None)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())


async def _open_loop(run: Run, rate: float, send: Send, seed: str) -> None:
    """Send requests at their due times. Latencies count from these, even if the sender is late."""
    async with asyncio.TaskGroup() as group:
        for due_s in arrivals(rate, seed):
            if not run.may_start(due_s):
                return
            await asyncio.sleep(max(0.0, run.begin_s + due_s - time.perf_counter()))
            group.create_task(run.send(send, run.take(), run.begin_s + due_s))
