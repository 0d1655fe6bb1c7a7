"""An engine over replicas of other processes: it dies when they can no longer be reached. On the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from dragoman.engine.base import DEATHS, Capabilities
from dragoman.engine.spread import Send, SpreadEngine
from dragoman.errors import EngineDead

EVERY_S = 5.0
PATIENCE_S = 10.0
MOST_MISSES = 3  # in a row; a restarting controller or redeployed application is back before


class WatchedEngine(SpreadEngine):
    """`why_unreachable` returns "" while the starter of the replicas can be reached. It may block; calls never overlap."""

    def __init__(
        self, capabilities: Capabilities, send: Send, why_unreachable: Callable[[], str], every_s: float = EVERY_S
    ) -> None:
        super().__init__(capabilities, send)
        self._why_unreachable = why_unreachable
        self._every_s = every_s
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await super().start()
        self._watching = asyncio.create_task(self._watch())

    async def shutdown(self, drain_s: float) -> None:
        await super().shutdown(drain_s)
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching

    async def _watch(self) -> None:
        num_misses = 0
        task: asyncio.Task[str] | None = None
        while True:
            await asyncio.sleep(self._every_s)
            task = task or asyncio.create_task(asyncio.to_thread(self._why_unreachable))
            done, _ = await asyncio.wait((task,), timeout=PATIENCE_S)
            why = task.result() if done else "the cluster does not answer"
            task = None if done else task
            num_misses = num_misses + 1 if why else 0
            if num_misses == MOST_MISSES:
                return self._die(why)

    def _die(self, why: str) -> None:
        self._life.death = why
        self._life.stop(EngineDead, why)
        DEATHS.tell()
