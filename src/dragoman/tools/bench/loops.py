"""The two ways of sending requests: by waiting clients (closed loop), or at fixed times (open loop)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dragoman.tools.bench.asking import Sample
from dragoman.tools.bench.load import Extent, Load, arrivals

Send = Callable[[int, float | None], Awaitable[Sample]]
"""Sends request `number` of the point, due at a time (None = now). Never raises."""


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
