"""One client: a connection that is opened anew whenever it was left, and a second one to cancel from.

Does: send a request as it says, read its answer as it says, tell what came. Does not: judge (`books` does). Used on the
event loop by one task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum

import httptools

from benchmarks.soak.request import Request

KEY = "soak-key"
PATIENCE_S = 300.0  # for one answer: longer is none
_PIECE_BYTES, _SLOW_PIECE_BYTES = 65_536, 512


class End(StrEnum):
    """How an exchange ended for the client."""

    ANSWERED = "answered"  # read to its end
    LEFT = "left"  # the client closed the connection
    BROKEN = "broken"  # the server did
    LATE = "late"  # the client gave up waiting


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client saw. `status` 0 = none came; `body` is complete if `end` is ANSWERED.

    `cancel`: what came of cancelling it, None = it was not.
    """

    end: End
    status: int = 0
    body: bytes = b""
    cancel: Seen | None = None


class _Answer:
    """The answer to one request, as httptools reports it."""

    def __init__(self) -> None:
        self.is_complete = False
        self.body = bytearray()
        self.cancel: Seen | None = None
        self.parser = httptools.HttpResponseParser(self)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True

    def seen(self, end: End) -> Seen:
        return Seen(end, self.parser.get_status_code(), bytes(self.body), self.cancel)


@dataclass
class Client:
    """`port`: of a server on this machine."""

    port: int
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = field(default=None, init=False)

    async def ask(self, request: Request, call_id: str) -> Seen:
        """Send `request` under that id and read its answer, both as it says."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._ask(request, call_id)
        except TimeoutError:
            self.leave()
            return Seen(End.LATE)
        except (OSError, httptools.HttpParserError):
            self.leave()
            return Seen(End.BROKEN)

    async def _ask(self, request: Request, call_id: str) -> Seen:
        if self.streams is not None and self.streams[0].at_eof():
            self.leave()
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        writer.write(request.raw or _head(request, call_id) + request.content[: request.sent_bytes])
        if request.sent_bytes is not None:
            await writer.drain()
            self.leave()
            return Seen(End.LEFT)
        cancel = None if request.cancel_after is None else self._canceller(call_id)
        return await self._read(reader, request, cancel)

    async def _read(
        self, reader: asyncio.StreamReader, request: Request, cancel: Callable[[], Awaitable[Seen]] | None
    ) -> Seen:
        answer = _Answer()
        while not answer.is_complete:
            if request.leave_after is not None and len(answer.body) >= request.leave_after:
                self.leave()
                return Seen(End.LEFT)
            if cancel is not None and len(answer.body) >= (request.cancel_after or 0):
                answer.cancel, cancel = await cancel(), None
            if request.pause_s:
                await asyncio.sleep(request.pause_s)  # a client that reads slowly, not a wait for something
            piece = await reader.read(_SLOW_PIECE_BYTES if request.pause_s else _PIECE_BYTES)
            if not piece:
                self.leave()
                return answer.seen(End.BROKEN)
            answer.parser.feed_data(piece)
        if not answer.parser.should_keep_alive():
            self.leave()
        return answer.seen(End.ANSWERED)

    def _canceller(self, call_id: str) -> Callable[[], Awaitable[Seen]]:
        async def cancel() -> Seen:
            other = Client(self.port)
            try:
                return await other.ask(cancelling(call_id), f"{call_id}-cancel")
            finally:
                other.leave()

        return cancel

    def leave(self) -> None:
        """Close the connection, whatever is on its way."""
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


def cancelling(call_id: str) -> Request:
    """What ends a call; there may be none of that id any more."""
    return Request("cancel", f"/cancel/{call_id}", b"", frozenset({200, 404}), is_call=False)


def _head(request: Request, call_id: str) -> bytes:
    fields = {
        "host": "127.0.0.1",
        "content-type": "application/json",
        "authorization": f"Bearer {KEY}",
        "x-request-id": call_id,
        "content-length": str(len(request.content)),
        **request.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{request.method} {request.path} HTTP/1.1\r\n{lines}\r\n".encode()
