"""Changes of the served models: each runs to its end, even if its client leaves. Used on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Changes:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    def of(cls, server: object) -> Changes:
        return cls()

    def start(self, change: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(change)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    async def run(self, change: Coroutine[Any, Any, T]) -> T:
        """The result of the change, which continues if this caller is cancelled. Raises: as the change."""
        return await asyncio.shield(self.start(change))

    async def aclose(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a waiting caller has it; others see it in the model's status
