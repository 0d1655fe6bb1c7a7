"""Limits the number of running requests; the most urgent waiting one is next. On the event loop."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count


class Places:
    def __init__(self, num_places: int) -> None:
        self._num_free = num_places
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()

    @asynccontextmanager
    async def taken(self, priority: int) -> AsyncIterator[None]:
        if self._num_free:
            self._num_free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (-priority, next(self._numbers), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it got its place at the same moment
                    self._give_back()
                raise
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():  # else the request was cancelled
                turn.set_result(None)
                return
        self._num_free += 1
