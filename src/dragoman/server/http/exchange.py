"""One HTTP request and its answer, over ASGI messages. The app makes one for each; one task uses it, on the event loop."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl

from dragoman.errors import Overloaded, ServerError, TooLarge
from dragoman.server.api import JSONLINES_MEDIA_TYPE, SSE_MEDIA_TYPE, Head, HttpCall, Reply
from dragoman.server.http.protocol import CUT_EXTENSION, REFUSED, TRAILERS_EXTENSION
from dragoman.types import USUAL_STANDING

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

DEFAULT_BODY_MEMORY_BYTES = 256 * 1024 * 1024  # four of the largest bodies that are allowed by default
MAX_REQUEST_ID_LENGTH = 256  # longer ids are replaced: they would travel through every log line and answer
BODILESS = (204, 304)  # RFC 9110, 15.3.5 and 15.4.5: no body, so no length either
_LEADING = re.compile(r"^/{2,}")  # of a base address that ends in a slash
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # all but the tab (RFC 9110, 5.5)


@dataclass(frozen=True)
class HeaderRules:
    """Rules for header fields. `sent`: in every answer. `naming`: hold the request's id; the first one counts.

    `folded`: hold other fields, `name=value;name=value`, for clients that cannot send those.
    """

    sent: Mapping[str, str] = field(default_factory=dict)
    naming: tuple[str, ...] = ("x-request-id",)
    folded: tuple[str, ...] = ()

    @cached_property
    def encoded(self) -> dict[bytes, bytes]:
        return {name.encode("ascii"): value.encode("latin-1") for name, value in self.sent.items()}


class Bodies:
    """Counts the bytes of all request bodies. `max_bytes`: of all together; a single body may have more."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0


class Body:
    """One body. Its bytes count inside `with`, which a task that continues the call may enter again."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._num_bytes = 0
        self._num_holders = 0

    def __enter__(self) -> Body:
        if not self._num_holders:
            self._bodies.num_bytes += self._num_bytes
        self._num_holders += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._num_holders -= 1
        if not self._num_holders:
            self._bodies.num_bytes -= self._num_bytes

    def check(self, count: int) -> None:
        """Raises: Overloaded if `count` more bytes do not fit beside those of other bodies."""
        num_all, most = self._bodies.num_bytes, self._bodies.max_bytes
        if num_all > self._num_bytes and num_all + count > most:
            raise Overloaded(
                f"The bodies of requests in flight take {num_all} bytes, {most} allowed (--max-body-memory); "
                f"this one needs at least {count} more"
            )

    def add(self, count: int) -> None:
        self.check(count)
        self._num_bytes += count
        self._bodies.num_bytes += count


class ClientGone(Exception):
    """The client closed the connection."""


class Exchange:
    """A request and its answer. Header names are lower-case. `properties`: with folded fields."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, rules: HeaderRules) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._extensions = scope.get("extensions") or {}
        self._rules = rules
        self._sends_trailers = False
        self.is_started = False
        self.is_detached = False  # nobody waits for the answer
        self.status = 0  # that was sent, 0 = none yet
        self.api = ""  # of the operation that answers, where it is one that generates
        self.caller = ""  # the name of the key that it came with
        self.standing = USUAL_STANDING  # what the key's requests may claim
        self.also_sent: Mapping[str, str] = {}  # header fields of this answer, beside those of every one
        self._cancellation: ServerError | None = None
        self._waiting: asyncio.Task[Any] | None = None
        self.method: str = scope["method"]
        self.path: str = _LEADING.sub("/", scope["path"])
        self.headers = _joined_headers(scope["headers"])
        is_folded = not self.headers.keys().isdisjoint(rules.folded)
        self.properties: Mapping[str, str] = (
            {**unfolded(self.headers, rules.folded), **self.headers} if is_folded else self.headers
        )
        query = scope["query_string"]
        self.query = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)) if query else {}
        named = (self.headers.get(name, "") for name in rules.naming)
        self.request_id = next((text for text in named if 0 < len(text) <= MAX_REQUEST_ID_LENGTH), "") or _new_id()

    def http_call(self, body: bytes = b"", path_params: Mapping[str, str] | None = None) -> HttpCall:
        """The request as dialects see it."""
        return HttpCall(
            method=self.method,
            path=self.path,
            body=body,
            headers=self.properties,
            query=self.query,
            path_params=path_params or {},
            request_id=self.request_id,
            caller=self.caller,
            scheme=self._scope.get("scheme", "http"),
        )

    @property
    def is_refused(self) -> bool:
        """True if the protocol could not read the whole request, and has answered it."""
        return REFUSED in self._scope

    @property
    def raw_target(self) -> tuple[bytes, bytes, Sequence[tuple[bytes, bytes]]]:
        """Path and query still encoded, and the header fields not joined; signatures cover these."""
        return self._scope["raw_path"], self._scope["query_string"], self._scope["headers"]

    def detached(self, send: Send) -> Exchange:
        """The same request without a client: its answer goes to `send`. Its body must have been read before."""
        twin = Exchange(self._scope, _never, send, self._rules)
        twin.request_id = self.request_id
        twin.is_detached = True
        twin.caller, twin.standing = self.caller, self.standing
        return twin

    async def read_body(self, max_size_bytes: int, held: Body) -> bytes:
        """The whole body. Raises: TooLarge, Overloaded if it is too much beside other bodies, ClientGone."""
        declared = self.headers.get("content-length", "")
        if declared.isdigit():
            if int(declared) > max_size_bytes:
                raise _too_large(int(declared), max_size_bytes)
            held.check(int(declared))
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunks.append(message.get("body", b""))
            held.add(len(chunks[-1]))
            size += len(chunks[-1])
            if size > max_size_bytes:
                raise _too_large(size, max_size_bytes)
            if not message.get("more_body", False):
                return b"".join(chunks)

    async def wait_gone(self) -> Exception:
        """Wait until the answer is unwanted. Returns ClientGone, or the error of `cancel`. For one task at a time."""
        task = self._waiting = asyncio.current_task()
        assert task is not None
        num_cancels = task.cancelling()
        try:
            while self._cancellation is None:
                if (await self._receive())["type"] == "http.disconnect":
                    return ClientGone()
        except asyncio.CancelledError:
            # More cancellations than by this call: other code wants the task to end as well.
            if self._cancellation is None or task.uncancel() > num_cancels:
                raise
        finally:
            self._waiting = None
        assert self._cancellation is not None
        return self._cancellation

    def cancel(self, error: ServerError) -> None:
        if self._cancellation is None:
            self._cancellation = error
            if self._waiting is not None:
                self._waiting.cancel()

    async def send_reply(self, reply: Reply, headers: Mapping[str, str] | None = None) -> None:
        """Send a complete answer, with its length; statuses that cannot have a body get none."""
        is_bodiless = reply.status in BODILESS
        body, length = (b"", None) if is_bodiless else (reply.body, len(reply.body))
        await self._start(reply.status, reply.media_type, {**reply.headers, **(headers or {})}, length)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def send_head(self, head: Head, headers: Mapping[str, str] | None = None) -> None:
        """Begin a streamed answer. Keeps the `trailer` field only if the client accepts trailers."""
        merged = {"x-accel-buffering": "no", **head.headers, **(headers or {})}  # nginx would gather it
        self._sends_trailers = "trailer" in merged and TRAILERS_EXTENSION in self._extensions
        if not self._sends_trailers:
            merged.pop("trailer", None)
        await self._start(head.status, head.media_type, merged, None)

    async def send_chunk(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def finish(self, body: bytes = b"", trailers: Sequence[tuple[str, str]] = ()) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        if self._sends_trailers:
            encoded = [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in trailers]
            await self._send({"type": "http.response.trailers", "headers": encoded, "more_trailers": False})

    async def cut(self) -> None:
        """Close the connection without ending the answer, so that the client sees that it is incomplete."""
        if CUT_EXTENSION not in self._extensions:  # another ASGI server: raising is what makes those close
            raise ConnectionAbortedError("the answer failed after its head was sent")
        await self._send({"type": CUT_EXTENSION})

    async def _start(self, status: int, media_type: str, headers: Mapping[str, str], length: int | None) -> None:
        merged = {"x-request-id": self.request_id, **self.also_sent}
        if media_type:
            merged["content-type"] = media_type
        if length is not None:
            merged["content-length"] = str(length)
        if headers:
            merged.update((name.lower(), _field_value(value)) for name, value in headers.items())
        if "vary" in self.also_sent and merged["vary"] != self.also_sent["vary"]:
            merged["vary"] += f", {self.also_sent['vary']}"
        encoded = [(name.encode("ascii"), value.encode("latin-1", "replace")) for name, value in merged.items()]
        fields = [*{**self._rules.encoded, **dict(encoded)}.items()]
        self.is_started = True
        self.status = status
        await self._send(
            {"type": "http.response.start", "status": status, "headers": fields, "trailers": self._sends_trailers}
        )


def _joined_headers(raw: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Header fields by lower-case name; repeated fields are joined with commas (RFC 9110, 5.3)."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}
    if len(headers) == len(raw):
        return headers
    headers = {}
    for raw_name, raw_value in raw:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def unfolded(headers: Mapping[str, str], folded: Sequence[str]) -> dict[str, str]:
    """The fields inside the `folded` ones, by lower-case name."""
    pairs = (pair.partition("=") for name in folded for pair in headers.get(name, "").split(";"))
    return {name.strip().lower(): value.strip() for name, equals, value in pairs if equals and name.strip()}


def _field_value(value: str) -> str:
    """The value without control characters: it may hold names that clients chose, which could begin another field."""
    return value if value.isprintable() else _CONTROLS.sub("?", value)


async def _never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("an event that is never set was set")


def _new_id() -> str:
    """A random UUID (version 4), made faster than by `uuid.uuid4`."""
    number = int.from_bytes(os.urandom(16)) & ~(0xF000_C << 60) | 0x4000_8 << 60
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _too_large(size_bytes: int, max_size_bytes: int) -> TooLarge:
    return TooLarge(f"The request body has at least {size_bytes} bytes, at most {max_size_bytes} are allowed")


# --- answers that no client reads -------------------------------------------------------------------------------------

_RECORD_ENDS: Mapping[str, bytes] = {JSONLINES_MEDIA_TYPE: b"\n", SSE_MEDIA_TYPE: b"\n\n"}


class RecordedAnswer:
    """An answer that is kept instead of sent, as far as it is. `status` 0 = not known yet.

    `items`: the records of a stream, each with its end, or the pieces of a body. `is_cut`: it broke off.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.items: list[bytes] = []
        self.size_bytes = 0  # of the items together
        self.is_finished = self.is_cut = False
        self._changed = asyncio.Event()

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "")

    @property
    def body(self) -> bytes:
        return b"".join(self.items)

    @property
    def is_over(self) -> bool:
        return self.is_finished or self.is_cut

    async def send(self, message: Message) -> None:
        """Keep what an exchange sends."""
        match message["type"]:
            case "http.response.start":
                self.status = message["status"]
                self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
            case "http.response.body":
                piece = message.get("body", b"")
                self.items += _records(piece, _RECORD_ENDS.get(self.media_type))
                self.size_bytes += len(piece)
                self.is_finished = not message.get("more_body", False)
            case message_type if message_type == CUT_EXTENSION:
                self.is_cut = True
        self._tell()

    def end(self) -> None:
        """Nothing more comes, even if the answer is not whole."""
        self.is_cut = not self.is_finished
        self._tell()

    async def follow(self, position: int) -> AsyncGenerator[bytes, None]:
        """The items from `position` on, those to come included."""
        while True:
            changed = self._changed
            if position < len(self.items):
                piece = b"".join(self.items[position:])
                position = len(self.items)
                yield piece
            elif self.is_over:
                return
            else:
                await changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _records(piece: bytes, end: bytes | None) -> list[bytes]:
    """The records of a piece, each with its end; all of it as one where the media type has no records."""
    if end is None:
        return [piece] if piece else []
    *whole, rest = piece.split(end)
    return [record + end for record in whole] + ([rest] if rest else [])


class InnerCall:
    """`POST path` with a JSON body, from a client that never leaves."""

    def __init__(self, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        self._body: bytes | None = body
        fields = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
            "client": None,
            "server": None,
        }
        self.answer = RecordedAnswer()
        self.send = self.answer.send

    async def receive(self) -> Message:
        if self._body is None:
            await asyncio.Event().wait()  # a client that stays
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}
