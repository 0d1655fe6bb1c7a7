"""Responses that are made while nobody waits, and their events for readers. One per server, on the event loop.

Source: OpenAI API reference, responses, `background` and `starting_after`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import msgspec

from dragoman.coroutines import cancel_all
from dragoman.server.api import SSE_MEDIA_TYPE, Head, Reply, StreamedReply
from dragoman.server.apis.openai_wire.errors import OpenAiError
from dragoman.server.apis.responses.schema import ResponseFailure
from dragoman.server.apis.responses.store import Asking, ResponseDocument
from dragoman.server.http.exchange import Exchange, Message
from dragoman.server.operations import Proceed

MAX_KEPT_BYTES = 64 << 20  # of the events of responses that have ended
_EVENT_END = b"\n\n"

logger = logging.getLogger("dragoman.server")


@dataclass(slots=True)
class _Run:
    """The answer so far. `events`: of a stream, by number, without comments."""

    status: int = 0
    media_type: str = ""
    body: bytearray = field(default_factory=bytearray)
    events: list[bytes] = field(default_factory=list)
    is_over: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.events))

    async def receive_message(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = {name.decode("ascii"): value.decode("latin-1") for name, value in message["headers"]}
            self.media_type = headers.get("content-type", "")
        elif message["type"] == "http.response.body":
            self.body += message["body"]
            if self.is_stream:
                self._take_events()
            self.is_over = not message["more_body"]
        self.tell()

    @property
    def is_stream(self) -> bool:
        return self.media_type.startswith(SSE_MEDIA_TYPE)

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def _take_events(self) -> None:
        *whole, rest = bytes(self.body).split(_EVENT_END)
        self.body = bytearray(rest)
        self.events += [event + _EVENT_END for event in whole if not event.startswith(b":")]


class Backgrounds:
    def __init__(self) -> None:
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def of(cls, server: object) -> Backgrounds:
        return cls()

    async def begin(self, exchange: Exchange, asking: Asking, proceed: Proceed) -> Reply | StreamedReply:
        """Have the call answered without its client; returns what has begun, or the error."""
        run = _Run()
        asking.begun = begun = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._make(run, exchange.detached(run.receive_message), asking, proceed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait((task, begun), return_when=asyncio.FIRST_COMPLETED)
        if not begun.done() or run.status >= 400:
            await task
            return Reply(run.status, bytes(run.body), run.media_type)
        running: ResponseDocument = begun.result()
        self._keep(running.response.id, run)
        if not asking.is_streamed:
            queued = msgspec.structs.replace(running.response, status="queued")
            return Reply(200, msgspec.json.encode(queued), "application/json")
        return _stream(run, 0)

    def follow(self, response_id: str, after: int) -> StreamedReply | None:
        """The events behind number `after`, future ones included; None if none are kept."""
        run = self._runs.get(response_id)
        return None if run is None or not run.is_stream else _stream(run, after + 1)

    async def aclose(self) -> None:
        await cancel_all(list(self._tasks))

    def _keep(self, response_id: str, run: _Run) -> None:
        self._runs[response_id] = run
        size = sum(one.size_bytes for one in self._runs.values())
        for name, one in list(self._runs.items()):
            if size <= MAX_KEPT_BYTES:
                break
            if one.is_over:
                size -= one.size_bytes
                del self._runs[name]

    async def _make(self, run: _Run, exchange: Exchange, asking: Asking, proceed: Proceed) -> None:
        try:
            await proceed(exchange)
        except Exception:  # request boundary: a defect must not leave a response that never ends
            logger.exception("request %s to %s failed", exchange.request_id, exchange.path)
        finally:
            run.is_over = True
            self._end(run, asking)
            run.tell()

    def _end(self, run: _Run, asking: Asking) -> None:
        if asking.begun is None or not asking.begun.done():
            return
        response = asking.begun.result().response
        message = "the response was not made to its end"
        if run.status >= 400:
            message = _message_of(bytes(run.body)) or message
        failed = msgspec.structs.replace(response, status="failed", error=ResponseFailure("server_error", message))
        asking.store.end(failed, ())  # nothing happens if it has ended


def _message_of(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=OpenAiError).error.message
    except msgspec.DecodeError:
        return ""


def _stream(run: _Run, begin: int) -> StreamedReply:
    return StreamedReply(Head(SSE_MEDIA_TYPE), _events(run, begin), lambda error: b"")


async def _events(run: _Run, begin: int) -> AsyncGenerator[bytes, None]:
    position = begin
    while True:
        changed = run.changed
        if position < len(run.events):
            piece = b"".join(run.events[position:])
            position = len(run.events)
            yield piece
        elif run.is_over:
            return
        else:
            await changed.wait()
