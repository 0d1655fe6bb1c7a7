"""Changes of the served models that clients asked for: each runs to its end, even if its client leaves.

Does: keep them going when a client leaves, cancel them when the server ends. Does not: change anything itself
(`hosting` does), or know APIs. Shared by the operations that load and unload models, on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Changes:
    """The changes under way in one server."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    def of(cls, server: object) -> Changes:
        """The changes of one server."""
        return cls()

    def start(self, change: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a change; nobody has to wait for it."""
        task = asyncio.create_task(change)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    async def run(self, change: Coroutine[Any, Any, T]) -> T:
        """The result of the change, which goes on if this caller is cancelled. Raises: what it raises."""
        return await asyncio.shield(self.start(change))

    async def aclose(self) -> None:
        """Cancel what still runs."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a waiting caller has it; others see it in the model's status
