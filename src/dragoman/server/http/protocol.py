"""HTTP/1.1 for uvicorn, with trailers, cut connections, HTTP/1.0, and bounds on slow and endless clients.

Offers the ASGI extensions `http.response.trailers` and `dragoman.response.cut`. Bytes behind a request stay unparsed
until it is answered. uvicorn makes one instance for each connection, and uses it on the event loop.

Sources: ASGI HTTP trailers extension. RFC 9112, sections 2.3 (versions), 3.2 (Host), 6.1 (Transfer-Encoding), 6.3
(bodies that end with the connection), 7.1.2 (chunked trailers). Also its sections 9.3 (persistence), 9.6 (closing), and
appendix C.2 (keep-alive in HTTP/1.0). RFC 9110, section 10.1.1 (Expect), 10.1.4 (TE).
"""

from __future__ import annotations

import asyncio
import math
import re
import select
import socket
import struct
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dragoman.server.http.fields import names

TRAILERS_EXTENSION = "http.response.trailers"
CUT_EXTENSION = "dragoman.response.cut"
REFUSED = "dragoman.refused"  # in the scope of a request that this protocol has answered itself, as it cannot be read

MAX_HEAD_SIZE_BYTES = 65_536  # request line and headers; the parser itself has no limit
FULL_BYTES = 65_536  # behind a request that is being answered; then reading goes on by a piece at each look
MAX_BEHIND_BYTES = 1_048_576  # a client that sends more before it has the answer is dropped
DEFAULT_STALL_TIMEOUT_S = 120.0  # LMI 0.31 drops a connection after as long a silence (`chunked_read_timeout`)
DEFAULT_ARRIVAL_TIMEOUT_S = 30.0  # for a head, and for a body beyond what its size needs at the least rate
LEAST_BODY_RATE = 1024  # bytes a second
LINGER_S = 2.0  # how long a connection whose request was answered early stays open, so that the client sees the answer
MAX_LINGER_BYTES = 262_144  # that are read and discarded meanwhile
LOOK_S = 1.0  # between looks at a connection that is not read from

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # the value of SO_LINGER that makes closing a reset
STALLED = "Dropped a client that read nothing for %g s."
HASTY = "Dropped a client that sent more than %d bytes behind a request without an answer."

_END_OF_HEAD = b"\r\n\r\n"  # of trailers as well
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(:[0-9]*)?")

MAX_LINES_BYTES = 65_536  # of one chunk's head, and of all trailers
MAX_HEADS_BYTES = 1_048_576  # of all chunks' heads, which cost more time than the bytes in them
BODY_BYTES_PER_HEADS_BYTE = 8  # as much more may come with large bodies

_TOO_LARGE = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
_CHUNK_HEAD = re.compile(rb"([0-9A-Fa-f]{1,16})(;[^\r\n]*)?")


class Flow(FlowControl):
    """uvicorn's flow control, which does not resume reading while many bytes wait behind a request."""

    is_full = False

    def resume_reading(self) -> None:
        if not self.is_full:
            super().resume_reading()


class DragomanCycle(RequestResponseCycle):
    """One request and its response, with trailers, a cut, and a limit on how long a write may wait for the client."""

    stall_timeout_s: float = DEFAULT_STALL_TIMEOUT_S
    _is_close_delimited: bool = False
    _expects_trailers: bool = False
    _is_body_complete: bool = False
    _trailers: bytes = b""
    ends_connection: bool = False  # once the answer is complete; it began before all of the request was here
    is_rest_short: Callable[[], bool] = lambda: False  # whether what is missing of the body is soon read over

    async def send(self, message: ASGISendEvent) -> None:
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
            is_early = self.more_body and not self.is_rest_short()
            self.keep_alive = self.keep_alive and not is_early
            await super().send({**event, "headers": [*headers, *self._connection_headers(headers)]})  # type: ignore[arg-type]
            if self.more_body and not self.keep_alive:
                # uvicorn would close at once, and a client that still sends lose the answer
                self.ends_connection = self.keep_alive = True
        else:
            if self._is_close_delimited:
                self.expected_content_length = len(event.get("body", b""))  # whatever comes belongs to the body
            await super().send(message)

    def begin_http_1_0(self, *, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = False

    def _connection_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        if self.scope["http_version"] != "1.0":
            return []
        sent = {name.lower() for name, _ in headers}
        if b"content-length" in sent:
            return [(b"connection", b"keep-alive")] if self.keep_alive and b"connection" not in sent else []
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
            self.mark_disconnected()

    def _drop_connection(self) -> None:
        if self._is_close_delimited:  # its end looks like any other: a reset is all that can tell
            _reset_on_close(self.transport)
        self.transport.close()  # what was written still goes out, the final chunk does not follow
        self.mark_disconnected()

    def mark_disconnected(self) -> None:
        self.disconnected = True
        self.message_event.set()

    def mark_refused(self) -> None:
        cast(dict[str, Any], self.scope)[REFUSED] = True
        self.mark_disconnected()


class DragomanProtocol(HttpToolsProtocol):
    """uvicorn's httptools protocol, one request at a time, whose responses are `DragomanCycle`s."""

    stall_timeout_s: float = DEFAULT_STALL_TIMEOUT_S
    arrival_timeout_s: float = DEFAULT_ARRIVAL_TIMEOUT_S
    _is_reading_head: bool = False
    _is_in_message: bool = False  # a request has begun and not all of it is here
    _head_size_bytes: int = 0
    _body_left: int | None = None  # bytes of a body of known length; None = it has none, or comes in chunks
    _chunks: ChunkEnds | None = None  # of a body in chunks
    _due_s: float | None = None  # when a head or a body must be here, on the loop's clock; None = none is on its way
    _timer: asyncio.TimerHandle | None = None
    _num_unread: float = math.inf  # bytes of a closing connection that waited when it was last looked at
    _last_bytes: bytes = b""  # that were parsed: the line that ends a head may come in two pieces
    _framing: bytes = b""  # of a body that the parser leaves alone
    _is_framing: bool = False
    _num_discarded: int | None = None  # bytes that came after the last answer; None = there will be another one
    flow: Flow

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport)
        self._behind = bytearray()  # what came and is not parsed yet
        self._due_s = self.loop.time() + self.timeout_keep_alive
        self._timer = self.loop.call_at(self._due_s, self._check_arrival)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    # --- what comes in ------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._num_discarded is not None:
            self._num_discarded += len(data)
            if self._num_discarded > MAX_LINGER_BYTES:
                self.flow.pause_reading()
            return
        self._behind += data
        self._read_on()

    def on_response_complete(self) -> None:
        if cast(DragomanCycle, self.cycle).ends_connection:
            self.server_state.total_requests += 1
            if self._is_in_message:
                self._linger()
            else:
                self.transport.close()
            return
        super().on_response_complete()
        self._read_on()

    def _read_on(self) -> None:
        try:
            while self._behind and self._num_discarded is None and not self._is_answering():
                if self.transport.is_closing():
                    return
                piece = bytes(self._behind[: self._end_of_piece()])
                if not piece:  # not all of a chunk's size is here
                    break
                del self._behind[: len(piece)]
                self._parse(piece)
        except Refusal as refusal:
            self._refuse(refusal)
            return
        is_full, was_full = len(self._behind) > FULL_BYTES, self.flow.is_full
        self.flow.is_full = is_full
        if is_full and not was_full:
            self.flow.pause_reading()
            self.loop.call_later(LOOK_S, self._look_behind)
        elif was_full and not is_full:
            self.flow.resume_reading()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self._is_in_message and not self.cycle.response_complete

    def _end_of_piece(self) -> int:
        """The number of bytes of `_behind` that belong to the current request. Raises: Refusal."""
        if self._body_left is not None:
            return self._body_left
        if self._chunks is not None:
            return self._chunks.end_in(self._behind)
        place = (self._last_bytes + self._behind[:3]).find(_END_OF_HEAD)
        if place >= 0:
            return place + len(_END_OF_HEAD) - len(self._last_bytes)
        place = self._behind.find(_END_OF_HEAD)
        return len(self._behind) if place < 0 else place + len(_END_OF_HEAD)

    def _parse(self, piece: bytes) -> None:
        if not self._is_in_message:
            self.parser = httptools.HttpRequestParser(self)  # what the last one has seen in trailers must not count
        if not self._is_in_message or self._is_reading_head:
            self._head_size_bytes += len(piece)
        if self._head_size_bytes > MAX_HEAD_SIZE_BYTES:
            raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The head of the request is too large.")
        if self._body_left is not None:
            self._body_left -= len(piece)
        self._last_bytes = (self._last_bytes + piece[-3:])[-3:]
        self._feed(piece)

    def _feed(self, piece: bytes) -> None:
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._stay_with_http_1()
        except httptools.HttpParserError as error:
            reason = "Invalid HTTP request received."
            known = error.__context__
            raise known if isinstance(known, Refusal) else Refusal(HTTPStatus.BAD_REQUEST, reason) from error

    def _stay_with_http_1(self) -> None:
        """Read on in HTTP/1.1 although the client offered another protocol, as Java's client does with every request."""
        self.parser = httptools.HttpRequestParser(self)
        if self._framing:
            head, self._framing, self._is_framing = b"POST / HTTP/1.1\r\n" + self._framing + b"\r\n", b"", True
            self._feed(head)
            self._is_framing = False

    # --- called by the parser -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_framing:
            return
        self._unset_keepalive_if_required()
        super().on_message_begin()
        self._is_in_message = self._is_reading_head = True
        self._expect_arrival()

    def on_url(self, url: bytes) -> None:
        if not self._is_framing:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers are discarded: the application must not trust fields that arrive so late."""
        if self._is_reading_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_framing:
            return
        http_version = self.parser.get_http_version()
        check_head(http_version, self.headers)
        self._is_reading_head, self._head_size_bytes = False, 0
        length = next((value for name, value in self.headers if name == b"content-length"), None)
        self._body_left = None if length is None else int(length)
        self._chunks = ChunkEnds() if any(name == b"transfer-encoding" for name, _ in self.headers) else None
        if self.parser.should_upgrade():
            framing = (pair for pair in self.headers if pair[0] in (b"content-length", b"transfer-encoding"))
            self._framing = b"".join(b"%s: %s\r\n" % pair for pair in framing)
        self._expect_arrival()
        extensions: dict[str, dict[object, object]] = {CUT_EXTENSION: {}}
        if http_version == "1.1" and _accepts_trailers(self.headers):
            extensions[TRAILERS_EXTENSION] = {}
        self.scope["extensions"] = extensions
        super().on_headers_complete()
        # uvicorn names its own class in there. The task that runs the response was only scheduled. So nothing of
        # the cycle was used yet, and it can become ours, whichever way this uvicorn starts it.
        self.cycle.__class__ = DragomanCycle
        cycle = cast(DragomanCycle, self.cycle)
        cycle.stall_timeout_s = self.stall_timeout_s
        cycle.is_rest_short = self._is_rest_short
        if http_version == "1.0":
            cycle.begin_http_1_0(keep_alive=self.parser.should_keep_alive())

    def on_body(self, body: bytes) -> None:
        if self._due_s is not None:
            most_s = self.loop.time() + self.arrival_timeout_s
            self._due_s = min(self._due_s + len(body) / LEAST_BODY_RATE, most_s)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._framing:
            return
        self._is_in_message, self._due_s = False, None
        self._body_left = self._chunks = None
        super().on_message_complete()

    def _is_rest_short(self) -> bool:
        """True if little is missing and surely comes: a client that waits for `100 Continue` may send none."""
        return not self.expect_100_continue and self._body_left is not None and self._body_left <= MAX_HEAD_SIZE_BYTES

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _refuse(self, refusal: Refusal) -> None:
        self.logger.warning("%s", refusal.reason)
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()
            return
        status, reason = refusal.status, refusal.reason.encode()
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (status, status.phrase.encode(), len(reason), reason)
        )
        if self.cycle is not None and not self.cycle.response_complete:  # its body is what cannot be read
            cast(DragomanCycle, self.cycle).mark_refused()
        self._linger()

    def _linger(self) -> None:
        """Close the connection in a moment. With unread bytes that resets it, and the client would lose the answer."""
        self._behind.clear()
        self._num_discarded, self.flow.is_full = 0, False
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)

    def _look_behind(self) -> None:
        """Drop a client that has left or sends too much behind a request. Its end comes behind all those bytes."""
        if self.transport.is_closing() or not self.flow.is_full:
            return
        if _has_left(self.transport):
            self.transport.abort()
        elif len(self._behind) > MAX_BEHIND_BYTES:
            self.logger.warning(HASTY, MAX_BEHIND_BYTES)
            _reset(self.transport)
        else:
            self.flow.is_full = False
            self.flow.resume_reading()

    def _expect_arrival(self) -> None:
        self._due_s = self.loop.time() + self.arrival_timeout_s
        if self._timer is None or self._due_s < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(self._due_s, self._check_arrival)

    def _check_arrival(self) -> None:
        """End the connection if a head or body is late. One timer for all requests: arming one costs time."""
        if self.transport.is_closing():
            self._await_reader(self.transport.get_write_buffer_size())
            return
        now_s = self.loop.time()
        due_s = self._due_s
        if due_s is None or self.flow.read_paused or self._num_discarded is not None:  # the rest waits for us
            due_s = now_s + self.arrival_timeout_s
        if due_s <= now_s:
            if self._is_reading_head or (self.cycle is not None and not self.cycle.response_complete):
                self._refuse(Refusal(HTTPStatus.REQUEST_TIMEOUT, "The request did not arrive in time."))
            self.transport.close()
            due_s = now_s + self.arrival_timeout_s
        self._timer = self.loop.call_at(due_s, self._check_arrival)

    def _await_reader(self, num_unread: int) -> None:
        if num_unread >= self._num_unread:
            self.logger.warning(STALLED, self.stall_timeout_s)
            _reset(self.transport)
            return
        self._num_unread = num_unread
        self._timer = self.loop.call_later(self.stall_timeout_s, self._check_arrival)


def check_head(http_version: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises: Refusal for another HTTP version, or a head that two servers in a row could read in two ways."""
    if http_version not in ("1.0", "1.1"):
        raise Refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "Only HTTP/1.1 and HTTP/1.0 are supported.")
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (not hosts and http_version == "1.1"):
        raise Refusal(HTTPStatus.BAD_REQUEST, f"A request must have one Host field, this one has {len(hosts)}.")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise Refusal(HTTPStatus.BAD_REQUEST, "The Host field is neither a name nor an address.")
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings and (http_version == "1.0" or [coding.lower() for coding in codings] != [b"chunked"]):
        raise Refusal(HTTPStatus.BAD_REQUEST, "Transfer-Encoding must be chunked, given once, in HTTP/1.1.")


def protocol_class(
    stall_timeout_s: float = DEFAULT_STALL_TIMEOUT_S, arrival_timeout_s: float = DEFAULT_ARRIVAL_TIMEOUT_S
) -> type[DragomanProtocol]:
    """The protocol with these limits: how long a write waits for the client, and how long a head or body may take."""
    limits = {"stall_timeout_s": stall_timeout_s, "arrival_timeout_s": arrival_timeout_s}
    return type("DragomanProtocol", (DragomanProtocol,), limits)


def _reset_on_close(transport: asyncio.Transport) -> None:
    raw_socket = transport.get_extra_info("socket")
    raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)


def _reset(transport: asyncio.Transport) -> None:
    """End the connection at once, and discard what is buffered, in the kernel as well."""
    _reset_on_close(transport)
    transport.abort()


def _has_left(transport: asyncio.Transport) -> bool:
    """True if the client has closed, behind bytes that are not read yet; False where the system cannot tell."""
    if not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def _accepts_trailers(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    fields = b",".join(value for name, value in headers if name == b"te")
    return bool(fields) and names(fields.decode("latin-1").lower(), "trailers")


class Refusal(Exception):
    """The request cannot be read any further. `reason`: the body of the answer."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class ChunkEnds:
    """Finds the end of a chunked body while it arrives, and bounds what surrounds it (RFC 9112, 7.1)."""

    def __init__(self) -> None:
        self._num_left = 0  # bytes of a chunk that has begun, with the end of its line
        self._num_heads_bytes = self._num_body_bytes = self._num_trailer_bytes = 0
        self._has_trailers = False  # the last chunk was here; an empty line ends the body
        self._last_bytes = b""  # of the trailers

    def end_in(self, data: bytearray) -> int:
        """The number of bytes of `data`, which continues the last call's, that belong to this body. Raises: Refusal."""
        place = self._num_left
        while not self._has_trailers and place < len(data):
            end = data.find(b"\r\n", place)
            if (len(data) if end < 0 else end) - place > MAX_LINES_BYTES:
                raise Refusal(_TOO_LARGE, "The head of a chunk is too large.")
            if end < 0:
                self._num_left = 0
                return place
            size = self._size(data, place, end)
            if not size:
                self._has_trailers = True
                return self._end_of_trailers(data, end)
            place = end + 4 + size
        if self._has_trailers:
            return self._end_of_trailers(data, 0)
        self._num_left = place - len(data)
        return len(data)

    def _size(self, data: bytearray, begin: int, end: int) -> int:
        head = _CHUNK_HEAD.fullmatch(data, begin, end)
        if head is None:
            raise Refusal(HTTPStatus.BAD_REQUEST, "The size of a chunk must be a hexadecimal number.")
        size = int(head[1], 16)
        self._num_heads_bytes += end - begin + 4
        self._num_body_bytes += size
        if self._num_heads_bytes > MAX_HEADS_BYTES + self._num_body_bytes // BODY_BYTES_PER_HEADS_BYTE:
            raise Refusal(_TOO_LARGE, "The chunks of the body are too small, or their heads too large.")
        return size

    def _end_of_trailers(self, data: bytearray, begin: int) -> int:
        read = self._last_bytes + data[begin:]
        place = read.find(_END_OF_HEAD)
        end = len(data) if place < 0 else begin + place + len(_END_OF_HEAD) - len(self._last_bytes)
        self._num_trailer_bytes += end - begin
        if self._num_trailer_bytes > MAX_LINES_BYTES:
            raise Refusal(_TOO_LARGE, "The trailers of the request are too large.")
        self._last_bytes = bytes(read[-3:])
        return end
