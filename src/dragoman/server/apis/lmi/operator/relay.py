"""Carries what a handler answers, piece by piece, from its thread or event loop to the server's event loop.

Holds the writer back when the reader is slow, and tells it when the reader has gone. `put` is called on a hook thread,
`put_soon` on an asynchronous handler's event loop, all else on the server's event loop.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

from dragoman.errors import ServerError
from dragoman.server.api import Head, Reply

MAX_WAITING = 64  # pieces; enough to keep a fast client busy, few enough that a slow one holds the handler back


class Abandoned(Exception):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True, slots=True)
class End:
    """The answer ends here, with a failure if there is an error."""

    error: ServerError | None = None


Piece = Reply | Head | bytes | End | None
"""A whole answer, or a head and chunks; None = the handler answers nothing. `End` comes last."""


class Relay:
    """One call's way back, with a single writer."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Piece] = asyncio.Queue()
        self._room = threading.Semaphore(MAX_WAITING)
        self.is_closed = False  # True if nobody reads any more

    def put(self, piece: Piece) -> None:
        """Hand a piece over, waiting for room. Raises: Abandoned."""
        self._room.acquire()
        self._hand_over(piece)

    async def put_soon(self, piece: Piece) -> None:
        """The same on an event loop. Raises: Abandoned."""
        if not self._room.acquire(blocking=False):
            await asyncio.to_thread(self._room.acquire)
        self._hand_over(piece)

    def put_last(self, piece: End) -> None:
        self._queue.put_nowait(piece)

    async def get(self) -> Piece:
        """The next piece. Raises: the failure that ends the answer."""
        piece = await self._queue.get()
        self._room.release()
        if isinstance(piece, End) and piece.error is not None:
            raise piece.error
        return piece

    def close(self) -> None:
        """Take no more; a writer that waits for room learns that it is not needed."""
        self.is_closed = True
        self._room.release(MAX_WAITING)

    def _hand_over(self, piece: Piece) -> None:
        if self.is_closed:
            self._room.release()  # the next one must not wait either
            raise Abandoned
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, piece)
        except RuntimeError as error:  # the server's event loop was closed
            raise Abandoned from error
