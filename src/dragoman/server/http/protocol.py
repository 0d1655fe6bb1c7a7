"""HTTP/1.1 for uvicorn with what it lacks: trailers, a cut connection, bounds on slow and endless clients, HTTP/1.0.

Does: offer two ASGI extensions, `http.response.trailers` (to clients that sent `TE: trailers`) and
`dragoman.response.cut`; refuse endless request heads; drop clients that stop reading, or send too slowly; answer clients
of HTTP/1.0 without chunks, and keep their connection if they ask for it.
Does not: know the application. Used by uvicorn, one instance per connection, on the event loop.
Source: ASGI HTTP trailers extension; RFC 9112, sections 6.3 (bodies that end with the connection), 7.1.2 (chunked trailers),
9.3 (persistence), appendix C.2 (keep-alive in HTTP/1.0); RFC 9110, section 10.1.1 (Expect), 10.1.4 (TE).
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import sys
from collections.abc import Iterable
from typing import Any, cast

import httptools
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

TRAILERS_EXTENSION = "http.response.trailers"
CUT_EXTENSION = "dragoman.response.cut"

MAX_HEAD_SIZE_BYTES = 65_536  # request line and headers; the parser itself has no limit
DEFAULT_STALL_TIMEOUT_S = 120.0  # LMI 0.31 drops a connection after as long a silence (`chunked_read_timeout`)
DEFAULT_ARRIVAL_TIMEOUT_S = 30.0  # for a head, and for a body beyond what its size needs at the least rate
LEAST_BODY_RATE = 1024  # bytes a second


_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # the value of SO_LINGER that makes closing a reset
STALLED = "Dropped a client that read nothing for %g s."


class DragomanCycle(RequestResponseCycle):
    """One request and its response, with trailers, a cut, and a limit on how long a write may wait for the client."""

    stall_timeout_s: float = DEFAULT_STALL_TIMEOUT_S
    _is_close_delimited: bool = False
    _expects_trailers: bool = False
    _is_body_complete: bool = False
    _trailers: bytes = b""

    async def send(self, message: ASGISendEvent) -> None:
        """Handle our own messages and hand every other one to uvicorn."""
        if self.flow.write_paused and not self.disconnected:
            await self._drain()
        event = cast(dict[str, Any], message)  # the typed union of uvicorn does not name our own message
        if event["type"] == CUT_EXTENSION:
            self._drop_connection()
        elif event["type"] == "http.response.trailers":
            await self._send_trailers(event.get("headers", ()), bool(event.get("more_trailers", False)))
        elif event["type"] == "http.response.body" and self._expects_trailers and not event.get("more_body", False):
            self._is_body_complete = True
            await super().send({"type": "http.response.body", "body": event.get("body", b""), "more_body": True})
        elif event["type"] == "http.response.start":
            self._expects_trailers = bool(event.get("trailers", False))
            headers = event.get("headers", ())
            await super().send({**event, "headers": [*headers, *self._connection_headers(headers)]})  # type: ignore[arg-type]
        else:
            if self._is_close_delimited:
                self.expected_content_length = len(event.get("body", b""))  # whatever comes belongs to the body
            await super().send(message)

    def begin_http_1_0(self, *, keep_alive: bool) -> None:
        """Expect a client of HTTP/1.0, which knows neither chunks nor `100 Continue`, and keeps connections on request."""
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = False

    def _connection_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """What HTTP/1.0 needs to be told of the connection; a body without a length ends with it there."""
        if self.scope["http_version"] != "1.0":
            return []
        names = {name.lower() for name, _ in headers}
        if b"content-length" in names:
            return [(b"connection", b"keep-alive")] if self.keep_alive and b"connection" not in names else []
        self._is_close_delimited = True
        self.chunked_encoding = False
        self.keep_alive = False
        return []

    async def _send_trailers(self, headers: Iterable[tuple[bytes, bytes]], more_trailers: bool) -> None:
        if not self._is_body_complete:
            raise RuntimeError("Trailers were sent before the end of the body, or were not announced in the head.")
        if self.disconnected:
            return
        self._trailers += b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        if more_trailers:
            return
        if self.chunked_encoding and self.scope["method"] != "HEAD":
            self.transport.write(b"0\r\n" + self._trailers + b"\r\n")
            self.chunked_encoding = False  # the last chunk is written, uvicorn only has to wind up
            self.expected_content_length = 0
        await super().send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self.stall_timeout_s):
                await self.flow.drain()
        except TimeoutError:
            self.logger.warning(STALLED, self.stall_timeout_s)
            _reset(self.transport)
            self._mark_disconnected()

    def _drop_connection(self) -> None:
        if self._is_close_delimited:  # its end looks like any other: a reset is all that can tell
            _reset_on_close(self.transport)
        self.transport.close()  # what was written still goes out, the final chunk does not follow
        self._mark_disconnected()

    def _mark_disconnected(self) -> None:
        self.disconnected = True
        self.message_event.set()


class DragomanProtocol(HttpToolsProtocol):
    """uvicorn's httptools protocol whose responses are `DragomanCycle`s."""

    stall_timeout_s: float = DEFAULT_STALL_TIMEOUT_S
    arrival_timeout_s: float = DEFAULT_ARRIVAL_TIMEOUT_S
    _is_reading_head: bool = False
    _head_size_bytes: int = 0
    _due_s: float | None = None  # when a head or a body must be here, on the loop's clock; None = none is on its way
    _timer: asyncio.TimerHandle | None = None
    _num_unread: float = math.inf  # bytes of a closing connection that waited when it was last looked at
    _received: bytes = b""
    _rest: bytes = b""
    _framing: bytes = b""  # of a body that the parser leaves alone
    _is_framing: bool = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the first request as long to begin as a later one has."""
        super().connection_made(transport)
        self._due_s = self.loop.time() + self.timeout_keep_alive
        self._timer = self.loop.call_at(self._due_s, self._check_arrival)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _check_arrival(self) -> None:
        """End the connection if what is on its way is late. One timer for all of its requests: arming one costs."""
        if self.transport.is_closing():
            self._await_reader(self.transport.get_write_buffer_size())
            return
        now_s = self.loop.time()
        due_s = self._due_s
        if due_s is None or self.flow.read_paused:  # the rest waits for us
            due_s = now_s + self.arrival_timeout_s
        if due_s <= now_s:
            self._refuse_late()
            due_s = now_s + self.arrival_timeout_s
        self._timer = self.loop.call_at(due_s, self._check_arrival)

    def _await_reader(self, num_unread: int) -> None:
        """Drop a client that takes nothing of the last bytes that a closing connection still has for it."""
        if num_unread >= self._num_unread:
            self.logger.warning(STALLED, self.stall_timeout_s)
            _reset(self.transport)
            return
        self._num_unread = num_unread
        self._timer = self.loop.call_later(self.stall_timeout_s, self._check_arrival)

    def _refuse_late(self) -> None:
        has_begun = self._is_reading_head or (self.cycle is not None and not self.cycle.response_started)
        if has_begun:
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()

    def on_body(self, body: bytes) -> None:
        """What has come gives time for more."""
        if self._due_s is not None:
            self._due_s += len(body) / LEAST_BODY_RATE
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of the request is here."""
        if self._framing:
            return
        self._due_s = None
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Stay with HTTP/1.1, as a server may, when the client would rather speak something else.

        Java's client offers HTTP/2 with every request. The parser stops behind such a head, and leaves the body to whoever
        takes over: another one reads it, and what follows.
        """
        stopped = sys.exception()
        assert stopped is not None
        rest = self._received[stopped.args[0] :]
        self.parser = httptools.HttpRequestParser(self)
        if self._framing:
            head, self._framing, self._is_framing = b"POST / HTTP/1.1\r\n" + self._framing + b"\r\n", b"", True
            self.parser.feed_data(head)
            self._is_framing = False
        self._rest = rest

    def data_received(self, data: bytes) -> None:
        """Parse `data`; a request head that exceeds its limit ends the connection with 431."""
        while data:
            self._parse(data)
            data, self._rest = self._rest, b""

    def _parse(self, data: bytes) -> None:
        """Parse `data`, at most to the end of a head that offers to upgrade: `_rest` is what follows it."""
        was_reading_head = self._is_reading_head
        self._received = data
        super().data_received(data)
        self._received = b""
        if not (was_reading_head and self._is_reading_head):
            return  # only data that lies wholly inside a head counts: a body may end in the same piece
        self._head_size_bytes += len(data)
        if self._head_size_bytes > MAX_HEAD_SIZE_BYTES and not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            self.transport.close()

    def _expect_arrival(self) -> None:
        """A head or a body has begun."""
        self._due_s = self.loop.time() + self.arrival_timeout_s
        if self._timer is None or self._due_s < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(self._due_s, self._check_arrival)

    def on_url(self, url: bytes) -> None:
        """A part of the path."""
        if not self._is_framing:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head."""
        if not self._is_framing:
            super().on_header(name, value)

    def on_message_begin(self) -> None:
        """Start a request; its head is counted from here."""
        if self._is_framing:
            return
        super().on_message_begin()
        self._is_reading_head = True
        self._head_size_bytes = 0
        self._expect_arrival()

    def on_headers_complete(self) -> None:
        """Offer the extensions in the scope and start the response."""
        if self._is_framing:
            return
        self._is_reading_head = False
        if self.parser.should_upgrade():
            framing = (pair for pair in self.headers if pair[0] in (b"content-length", b"transfer-encoding"))
            self._framing = b"".join(b"%s: %s\r\n" % pair for pair in framing)
        self._expect_arrival()
        extensions: dict[str, dict[object, object]] = {CUT_EXTENSION: {}}
        http_version = self.parser.get_http_version()
        if http_version == "1.1" and _accepts_trailers(self.headers):
            extensions[TRAILERS_EXTENSION] = {}
        self.scope["extensions"] = extensions
        super().on_headers_complete()
        # uvicorn names its own class in there. The task that runs the response was only scheduled, so nothing of
        # the cycle was used yet and it can become ours, whichever way this uvicorn starts it.
        self.cycle.__class__ = DragomanCycle
        cycle = cast(DragomanCycle, self.cycle)
        cycle.stall_timeout_s = self.stall_timeout_s
        if http_version == "1.0":
            cycle.begin_http_1_0(keep_alive=self.parser.should_keep_alive())


def protocol_class(
    stall_timeout_s: float = DEFAULT_STALL_TIMEOUT_S, arrival_timeout_s: float = DEFAULT_ARRIVAL_TIMEOUT_S
) -> type[DragomanProtocol]:
    """The protocol with limits of its own, in seconds: how long a write waits for the client, a head or body may take."""
    limits = {"stall_timeout_s": stall_timeout_s, "arrival_timeout_s": arrival_timeout_s}
    return type("DragomanProtocol", (DragomanProtocol,), limits)


def _reset_on_close(transport: asyncio.Transport) -> None:
    raw_socket = transport.get_extra_info("socket")
    raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)


def _reset(transport: asyncio.Transport) -> None:
    """End the connection at once. What is buffered can never be delivered; the kernel need not keep its part either."""
    _reset_on_close(transport)
    transport.abort()


def _accepts_trailers(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """True if a TE field names `trailers`."""
    return any(
        coding.partition(b";")[0].strip().lower() == b"trailers"
        for name, value in headers
        if name == b"te"
        for coding in value.split(b",")
    )
