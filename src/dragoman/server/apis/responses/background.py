"""Responses that are made while nobody waits, and their events for readers. One per server, on the event loop.

Source: OpenAI API reference, responses, `background` and `starting_after`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

import msgspec

from dragoman.coroutines import cancel_all
from dragoman.server.api import SSE_MEDIA_TYPE, Head, Reply, StreamedReply
from dragoman.server.apis.openai_wire.errors import OpenAiError
from dragoman.server.apis.responses.schema import ResponseFailure
from dragoman.server.apis.responses.store import Asking, ResponseDocument
from dragoman.server.http.exchange import Exchange, RecordedAnswer
from dragoman.server.operations import Proceed

MAX_KEPT_BYTES = 64 << 20  # of the events of responses that have ended

logger = logging.getLogger("dragoman.server")


class Backgrounds:
    def __init__(self) -> None:
        self._records: OrderedDict[str, RecordedAnswer] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def of(cls, server: object) -> Backgrounds:
        return cls()

    async def begin(self, exchange: Exchange, asking: Asking, proceed: Proceed) -> Reply | StreamedReply:
        """Have the call answered without its client; returns what has begun, or the error."""
        record = RecordedAnswer()
        asking.begun = begun = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._make(record, exchange.detached(record.send), asking, proceed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait((task, begun), return_when=asyncio.FIRST_COMPLETED)
        if not begun.done() or record.status >= 400:
            await task
            return Reply(record.status, record.body, record.media_type)
        running: ResponseDocument = begun.result()
        self._keep(running.response.id, record)
        if not asking.is_streamed:
            queued = msgspec.structs.replace(running.response, status="queued")
            return Reply(200, msgspec.json.encode(queued), "application/json")
        return _stream(record, 0)

    def follow(self, response_id: str, after: int) -> StreamedReply | None:
        """The events behind number `after`, future ones included; None if none are kept."""
        record = self._records.get(response_id)
        return None if record is None or record.media_type != SSE_MEDIA_TYPE else _stream(record, after + 1)

    async def aclose(self) -> None:
        await cancel_all(list(self._tasks))

    def _keep(self, response_id: str, record: RecordedAnswer) -> None:
        self._records[response_id] = record
        size = sum(record.size_bytes for record in self._records.values())
        for name, entry in list(self._records.items()):
            if size <= MAX_KEPT_BYTES:
                break
            if entry.is_over:
                size -= entry.size_bytes
                del self._records[name]

    async def _make(self, record: RecordedAnswer, exchange: Exchange, asking: Asking, proceed: Proceed) -> None:
        try:
            await proceed(exchange)
        except Exception:  # request boundary: a defect must not leave a response that never ends
            logger.exception("request %s to %s failed", exchange.request_id, exchange.path)
        finally:
            self._end(record, asking)
            record.end()

    def _end(self, record: RecordedAnswer, asking: Asking) -> None:
        if asking.begun is None or not asking.begun.done():
            return
        response = asking.begun.result().response
        message = "the response was not made to its end"
        if record.status >= 400:
            message = _message_of(record.body) or message
        failed = msgspec.structs.replace(response, status="failed", error=ResponseFailure("server_error", message))
        asking.store.end(failed, ())  # nothing happens if it has ended


def _message_of(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=OpenAiError).error.message
    except msgspec.DecodeError:
        return ""


def _stream(record: RecordedAnswer, begin: int) -> StreamedReply:
    return StreamedReply(Head(SSE_MEDIA_TYPE), record.follow(begin), lambda error: b"")
