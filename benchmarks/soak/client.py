"""One client: a connection that is opened anew whenever it was left, and a second one to cancel from.

Does: send a request as it says, read its answer as it says, tell what came. Does not: judge (`books` does). Used on the
event loop by one task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
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

    `cancel`: what came of cancelling it, None = it was not. `behind`: the same of each request behind it.
    """

    end: End
    status: int = 0
    body: bytes = b""
    cancel: Seen | None = None
    behind: tuple[Seen, ...] = ()


class _Answers:
    """The answers to `count` requests on one connection, as httptools reports them."""

    def __init__(self, count: int) -> None:
        self.num_bytes = 0
        self.cancel: Seen | None = None
        self.parser = httptools.HttpResponseParser(self)
        self._count = count
        self._ended: list[Seen] = []
        self._status = 0
        self._body = bytearray()

    @property
    def are_complete(self) -> bool:
        return len(self._ended) == self._count

    def on_headers_complete(self) -> None:
        self._status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._body += body
        self.num_bytes += len(body)

    def on_message_complete(self) -> None:
        self._ended.append(Seen(End.ANSWERED, self._status, bytes(self._body)))
        self._status = 0
        self._body.clear()

    def seen(self, end: End) -> Seen:
        """All of them; `end`: of those that are not complete."""
        missing = [Seen(end)] * (self._count - len(self._ended))
        if missing and end is End.BROKEN:
            missing[0] = Seen(end, self._status, bytes(self._body))
        first, *behind = [*self._ended, *missing]
        return replace(first, cancel=self.cancel, behind=tuple(behind))


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
            end = End.LATE
        except (OSError, httptools.HttpParserError):
            end = End.BROKEN
        self.leave()
        return Seen(end, behind=tuple(Seen(end) for _ in request.behind))

    async def _ask(self, request: Request, call_id: str) -> Seen:
        if self.streams is not None and self.streams[0].at_eof():
            self.leave()
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        writer.write(request.raw or _sent(request, call_id))
        if request.sent_bytes is not None:
            await writer.drain()
            try:
                async with asyncio.timeout(request.hold_s):
                    return await self._read(reader, request, None)
            except TimeoutError:
                self.leave()
                return Seen(End.LEFT)
        cancel = None if request.cancel_after is None else self._canceller(call_id)
        return await self._read(reader, request, cancel)

    async def _read(
        self, reader: asyncio.StreamReader, request: Request, cancel: Callable[[], Awaitable[Seen]] | None
    ) -> Seen:
        answers = _Answers(1 + len(request.behind))
        while not answers.are_complete:
            if request.leave_after is not None and answers.num_bytes >= request.leave_after:
                self.leave()
                return answers.seen(End.LEFT)
            if cancel is not None and answers.num_bytes >= (request.cancel_after or 0):
                answers.cancel, cancel = await cancel(), None
            if request.pause_s:
                await asyncio.sleep(request.pause_s)  # a client that reads slowly, not a wait for something
            piece = await reader.read(_SLOW_PIECE_BYTES if request.pause_s else _PIECE_BYTES)
            if not piece:
                self.leave()
                return answers.seen(End.BROKEN)
            answers.parser.feed_data(piece)
        if not answers.parser.should_keep_alive() or request.sent_bytes is not None:
            self.leave()
        return answers.seen(End.ANSWERED)

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


def named(call_id: str, index: int) -> str:
    """The id of a request that is sent behind the one of that id."""
    return f"{call_id}-behind-{index}" if index else call_id


def cancelling(call_id: str) -> Request:
    """What ends a call; there may be none of that id any more."""
    return Request("cancel", f"/cancel/{call_id}", b"", frozenset({200, 404}), is_call=False)


def _sent(request: Request, call_id: str) -> bytes:
    """The request, and those behind it."""
    requests = enumerate((request, *request.behind))
    return b"".join(_head(one, named(call_id, index)) + _body(one) for index, one in requests)


def _head(request: Request, call_id: str) -> bytes:
    length = {"content-length": str(len(request.content))}
    fields = {
        "host": "127.0.0.1",
        "content-type": "application/json",
        "authorization": f"Bearer {KEY}",
        "x-request-id": call_id,
        **(length if request.trailers is None else {"transfer-encoding": "chunked"}),
        **request.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{request.method} {request.path} HTTP/1.1\r\n{lines}\r\n".encode()


def _body(request: Request) -> bytes:
    """What is sent of the body; in chunks that grow, with extensions, where it has trailers."""
    content = request.content[: request.sent_bytes]
    if request.trailers is None:
        return content
    chunks, place, size = [], 0, 1
    while place < len(content):
        piece = content[place : place + size]
        chunks.append(b"%x;soak=1\r\n%s\r\n" % (len(piece), piece))
        place, size = place + size, size * 8
    return b"".join(chunks) + (b"" if request.sent_bytes is not None else b"0\r\n" + request.trailers + b"\r\n")
