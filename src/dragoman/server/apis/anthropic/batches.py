"""Message batches. `server.batches` runs them. On the event loop. Source: Anthropic API reference, message batches."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from dragoman.batch.files import AnswerLine, key_of, numbered_lines, read_line
from dragoman.errors import InvalidParameter, InvalidRequest
from dragoman.server.api import JSON_MEDIA_TYPE, Head, HttpCall, StreamedReply
from dragoman.server.apis.anthropic.request import ANTHROPIC, ERRORS
from dragoman.server.apis.openai_wire.fields import decode_object
from dragoman.server.batches.desk import PageNames, desk_of, page_of
from dragoman.server.batches.store import StoredBatch, lines_of
from dragoman.server.descriptions import TEXT, Answer, Answers, Schema, an_object, array, json_answer, parameter, ref
from dragoman.server.operations import AnswerCall, AnswerOperation, Server
from dragoman.server.security.callers import Scope

BATCHES = "/v1/messages/batches"
MAX_REQUESTS = 100_000  # Anthropic API reference, create a message batch
PAGE = PageNames("after_id", "before_id", 20, 1000)  # the same, list message batches and list models

_WINDOW_S = 24 * 3600
_PREFIX = "msgbatch"
_PATH = "/v1/messages"
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_JSONL = "application/x-jsonl"
_PIECE = 256  # lines that are sent together


class Page(msgspec.Struct):
    """One page of a list, whose entries have ids."""

    data: list[Any]
    has_more: bool
    first_id: str | None
    last_id: str | None

    @classmethod
    def of(cls, data: list[Any], has_more: bool) -> Self:
        return cls(data, has_more, *((data[0].id, data[-1].id) if data else (None, None)))


def rfc3339(seconds: float) -> str:
    """A time since the epoch, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class MessageCounts(msgspec.Struct):
    """The number of a batch's requests in each state; all are `processing` until the batch has ended."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatch(msgspec.Struct, kw_only=True, tag_field="type", tag="message_batch"):
    """A batch."""

    id: str
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageCounts
    ended_at: str | None
    created_at: str
    expires_at: str
    archived_at: None = None
    cancel_initiated_at: str | None
    results_url: str | None


class MessageBatchList(Page):
    """One page of batches."""

    data: list[MessageBatch]


class DeletedMessageBatch(msgspec.Struct, tag_field="type", tag="message_batch_deleted"):
    """A batch that was deleted."""

    id: str


def _shape(batch: StoredBatch, http: HttpCall) -> MessageBatch:
    times = batch.times_s
    return MessageBatch(
        id=batch.id,
        processing_status="ended" if batch.has_ended else "canceling" if batch.state == "cancelling" else "in_progress",
        request_counts=_counts(batch),
        ended_at=rfc3339(times[batch.state]) if batch.has_ended else None,
        created_at=rfc3339(batch.created_s),
        expires_at=rfc3339(batch.expires_s),
        cancel_initiated_at=rfc3339(times["cancelling"]) if "cancelling" in times else None,
        results_url=f"{http.scheme}://{http.headers.get('host', 'localhost')}{BATCHES}/{batch.id}/results"
        if batch.has_ended
        else None,
    )


def _counts(batch: StoredBatch) -> MessageCounts:
    if not batch.has_ended:
        return MessageCounts(processing=batch.num_requests)
    left = batch.num_requests - batch.num_good - batch.num_bad
    if batch.state == "cancelled":
        return MessageCounts(0, batch.num_good, batch.num_bad, left, 0)
    return MessageCounts(0, batch.num_good, batch.num_bad, 0, left)


async def create(http: HttpCall, server: Server) -> MessageBatch:
    desk = desk_of(server)
    content, num_requests = await asyncio.to_thread(_requests, http)
    store = desk.store
    file = await asyncio.to_thread(store.add_file, http.caller, "", "messages", content)
    batch = await desk.submit(
        _PREFIX, http.caller, _PATH, file.id, _WINDOW_S, num_requests=num_requests, has_files=False
    )
    return _shape(batch, http)


def _requests(http: HttpCall) -> tuple[bytes, int]:
    """Returns the requests as lines of a batch's input, and their number. Raises: InvalidRequest."""
    requests = decode_object(http, ANTHROPIC).get("requests")
    if not isinstance(requests, list) or not 1 <= len(requests) <= MAX_REQUESTS:
        raise InvalidParameter(f"requests must be an array of 1 to {MAX_REQUESTS} requests", param="requests")
    seen: dict[str, int] = {}
    lines: list[bytes] = []
    for index, request in enumerate(requests):
        where = f"requests.{index}"
        if not isinstance(request, dict):
            raise InvalidParameter(f"{where} must be an object with custom_id and params", param=where)
        custom_id, params = request.get("custom_id"), request.get("params")
        if not isinstance(custom_id, str) or not _CUSTOM_ID.fullmatch(custom_id):
            raise ANTHROPIC.wrong(f"{where}.custom_id", "1 to 64 letters, digits, - and _", custom_id)
        if custom_id in seen:
            allowed = f"another one than that of requests.{seen[custom_id]}"
            raise ANTHROPIC.wrong(f"{where}.custom_id", allowed, custom_id)
        if not isinstance(params, dict):
            raise ANTHROPIC.wrong(f"{where}.params", "an object", params)
        if params.get("stream"):
            raise InvalidParameter(f"{where}.params.stream must be false or left out", param=f"{where}.params.stream")
        seen[custom_id] = index
        line = {"custom_id": custom_id, "method": "POST", "url": _PATH, "body": params}
        lines.append(msgspec.json.encode(line) + b"\n")
    return b"".join(lines), len(lines)


def _batch(http: HttpCall, server: Server) -> StoredBatch:
    return desk_of(server).store.batch(http.path_params["name"], http.caller, _PREFIX)


async def list_batches(http: HttpCall, server: Server) -> MessageBatchList:
    newest_first = desk_of(server).store.batches(http.caller, _PREFIX)[::-1]
    page, has_more = page_of(newest_first, http.query, PAGE)
    return MessageBatchList.of([_shape(batch, http) for batch in page], has_more)


async def get_batch(http: HttpCall, server: Server) -> MessageBatch:
    return _shape(_batch(http, server), http)


async def cancel(http: HttpCall, server: Server) -> MessageBatch:
    batch = _batch(http, server)
    if batch.has_ended:
        raise InvalidRequest(f"Batch {batch.id} cannot be canceled: it has ended", param="batch_id")
    return _shape(await desk_of(server).cancel(batch), http)


async def delete(http: HttpCall, server: Server) -> DeletedMessageBatch:
    batch = _batch(http, server)
    if not batch.has_ended:
        message = f"Batch {batch.id} cannot be deleted before it has ended: cancel it first"
        raise InvalidRequest(message, param="batch_id")
    await asyncio.to_thread(desk_of(server).store.delete_batch, batch)
    return DeletedMessageBatch(batch.id)


async def results(http: HttpCall, server: Server) -> StreamedReply:
    batch, store = _batch(http, server), desk_of(server).store
    if not batch.has_ended:
        raise InvalidRequest(f"Batch {batch.id} has no results yet: it has not ended", param="batch_id")
    lines = _results(store.answers(batch.id), store.content(batch.input_id), batch)
    return StreamedReply(Head(_JSONL), _pieces(lines), lambda error: b"")


async def _pieces(lines: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    def some() -> bytes:
        return b"".join(line for line, _ in zip(lines, range(_PIECE), strict=False))

    while piece := await asyncio.to_thread(some):
        yield piece


def _results(answers: Path, source: Path, batch: StoredBatch) -> Iterator[bytes]:
    answered: set[bytes] = set()
    for line in lines_of(answers):
        found = msgspec.json.decode(line, type=AnswerLine)
        answered.add(key_of(found.custom_id, 0))
        if found.response is None:
            continue
        kind, field = ("succeeded", "message") if found.is_good else ("errored", "error")
        yield _line(found.custom_id, {"type": kind, field: found.response.body})
    if batch.num_good + batch.num_bad == batch.num_requests:
        return
    left = {"type": "canceled" if batch.state == "cancelled" else "expired"}
    for number, text in numbered_lines(source):
        custom_id = read_line(number, text).custom_id
        if key_of(custom_id, 0) not in answered:
            yield _line(custom_id, left)


def _line(custom_id: str | None, result: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"custom_id": custom_id, "result": result}) + b"\n"


def batch_schemas() -> dict[str, Schema]:
    request = an_object({"custom_id": {**TEXT, "pattern": f"^{_CUSTOM_ID.pattern}$"}, "params": ref("MessagesRequest")})
    return {"MessageBatchRequest": an_object({"requests": array(request, minItems=1, maxItems=MAX_REQUESTS)})}


BATCH_PARAMETERS = {
    "batches_after_query": parameter("query", "after_id", "the page after this batch", TEXT),
    "batches_before_query": parameter("query", "before_id", "the page before this batch", TEXT),
    "batches_limit_query": parameter(
        "query", "limit", "how many a page has", {"type": "integer", "minimum": 1, "maximum": PAGE.most}
    ),
}

_KINDS = ("invalid_request", "invalid_parameter", "unsupported", "unauthorized", "server_error")
_operation = partial(AnswerOperation, tag="Anthropic Messages", scope=Scope.INFERENCE)


def _answers(kind: Any, *kinds: str) -> Answers:
    return ERRORS.beside(kind if isinstance(kind, Answer) else json_answer(kind), (*_KINDS, *kinds))


def _of_one(method: str, below: str, answer: AnswerCall, kind: Any, summary: str) -> AnswerOperation:
    path, answers = f"{BATCHES}/{{name}}{below}", _answers(kind, "not_found")
    return _operation(
        method=method, path=path, summary=summary, answers=answers, parameters=("name_path",), answer=answer
    )


_RESULTS = Answer("a line for each request", {_JSONL: TEXT})
BATCH_OPERATIONS = (
    _operation(
        path=BATCHES,
        summary="Have many messages answered",
        description="Batches wait for every other request, and survive restarts of the server.",
        answers=_answers(MessageBatch, "invalid_payload", "too_large", "overloaded"),
        body={JSON_MEDIA_TYPE: ref("MessageBatchRequest")},
        answer=create,
    ),
    _operation(
        method="GET",
        path=BATCHES,
        summary="The caller's batches",
        answers=_answers(MessageBatchList),
        parameters=tuple(BATCH_PARAMETERS),
        answer=list_batches,
    ),
    _of_one("GET", "/results", results, _RESULTS, "What has become of a batch's requests"),
    _of_one("POST", "/cancel", cancel, MessageBatch, "End a batch"),
    _of_one("GET", "", get_batch, MessageBatch, "A batch"),
    _of_one("DELETE", "", delete, DeletedMessageBatch, "Forget a batch that has ended"),
)
