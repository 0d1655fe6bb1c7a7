"""Carries what a handler answers, piece by piece, from its thread or event loop to the server's event loop.

Does: hold a few pieces back when the reader is slow, tell the writer that the reader has gone. Does not: look into them.
Made by `handler_dialect` for every call, on the server's event loop; `put` is called on a hook thread, `put_soon` on the
event loop of an asynchronous handler, all else on the server's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from dragoman.errors import ServerError
from dragoman.server.dialects.base import Head, Reply

MAX_WAITING = 64  # pieces; enough to keep a fast client busy, few enough that a slow one holds the handler back


class Abandoned(Exception):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The answer ends here, with a failure."""

    error: ServerError


class End:
    """The answer ends here."""


Piece = Reply | Head | bytes | Broken | End | None
"""What travels: a whole answer, or a head and chunks; None = the handler answers nothing. `End` or `Broken` comes last."""


class Relay:
    """One call's way back."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Piece] = asyncio.Queue(MAX_WAITING)
        self._is_closed = False

    def put(self, piece: Piece) -> None:
        """Hand a piece over, waiting for room. Raises: Abandoned."""
        self._hand_over(self._put(piece)).result()

    async def put_soon(self, piece: Piece) -> None:
        """The same on an event loop. Raises: Abandoned."""
        await asyncio.wrap_future(self._hand_over(self._put(piece)))

    async def put_last(self, piece: Broken | End) -> None:
        """End the answer; nothing happens if nobody waits for it. Called on the server's event loop."""
        if not self._is_closed:
            await self._queue.put(piece)

    async def get(self) -> Piece:
        """The next piece."""
        return await self._queue.get()

    def close(self) -> None:
        """Take no more; a writer that waits for room learns that it is not needed."""
        self._is_closed = True
        while not self._queue.empty():
            self._queue.get_nowait()

    async def _put(self, piece: Piece) -> None:
        if not self._is_closed:
            await self._queue.put(piece)
        if self._is_closed:
            raise Abandoned

    def _hand_over(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:  # the server's event loop was closed
            work.close()
            raise Abandoned from error
