"""Batches and their files; `server.batches` runs and keeps them. Source: OpenAI API reference, batches and files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from dragoman.batch.files import PATHS
from dragoman.errors import Conflict, InvalidParameter, InvalidPayload, InvalidRequest, NotFound
from dragoman.server.api import JSON_MEDIA_TYPE, Head, HttpCall, StreamedReply
from dragoman.server.apis.openai_wire.errors import ERRORS
from dragoman.server.apis.openai_wire.fields import (
    MAX_METADATA,
    check_metadata,
    check_word,
    decode_object,
    read_struct,
    shown,
)
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.batches.desk import PageNames, desk_of, in_order, page_of
from dragoman.server.batches.store import StoredBatch, StoredFile
from dragoman.server.descriptions import INTEGER, TEXT, Answer, Schema, an_object, json_answer, parameter, ref
from dragoman.server.http.bodies import MULTIPART, read_parts
from dragoman.server.operations import AnswerCall, AnswerOperation, Server
from dragoman.server.security.callers import Scope

PAGE = PageNames("after", "", 20, 100)  # OpenAI API reference, list batches
WINDOW = "24h"
_WINDOW_S = 24 * 3600
ENDPOINTS = tuple(path for path in PATHS if path != "/v1/messages")
_EXPIRY = ("output_expires_after.anchor", "output_expires_after.seconds")
_PREFIX = "batch"
_TIMED_STATES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
_FILES_PAGE = PageNames("after", "", 10_000, 10_000)  # OpenAI API reference, list files
PURPOSES = ("batch", "batch_output")
LEAST_AGE_S, MOST_AGE_S = 3600, 30 * 24 * 3600  # OpenAI API reference, expires_after
_FILE_EXPIRY = ("expires_after[anchor]", "expires_after[seconds]")
_PIECE = 1 << 18


class _Page(msgspec.Struct):
    """One page of a list, whose entries have ids."""

    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"

    @classmethod
    def of(cls, data: list[Any], has_more: bool) -> Self:
        first_id, last_id = (data[0].id, data[-1].id) if data else (None, None)
        return cls(data, first_id, last_id, has_more)


# --- batches ----------------------------------------------------------------------------------------------------------


class _Expiry(msgspec.Struct):
    anchor: str
    seconds: int


class BatchBody(msgspec.Struct, kw_only=True):
    input_file_id: str = ""
    endpoint: str = ""
    completion_window: str = ""
    metadata: dict[str, str] | None = None
    output_expires_after: _Expiry | None = None


class BatchError(msgspec.Struct):
    """An error in a batch."""

    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(msgspec.Struct):
    """All errors in a batch."""

    data: list[BatchError]
    object: Literal["list"] = "list"


class RequestCounts(msgspec.Struct):
    """The number of requests in a batch, and how many are answered."""

    total: int
    completed: int
    failed: int


class InputDetails(msgspec.Struct):
    """Of the prompts' tokens."""

    cached_tokens: int


class OutputDetails(msgspec.Struct):
    """Of the answers' tokens."""

    reasoning_tokens: int


class BatchUsage(msgspec.Struct):
    """The tokens of all requests of a batch."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class BatchObject(msgspec.Struct, kw_only=True):
    """A batch."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str = WINDOW
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(_Page):
    """One page of batches."""

    data: list[BatchObject]


def _shape(batch: StoredBatch) -> BatchObject:
    faults = [BatchError(fault.code, fault.message, fault.param, fault.line) for fault in batch.faults]
    times, usage = batch.times_s, {**dict.fromkeys(("input", "cached", "output", "reasoning"), 0), **batch.usage}
    reached: dict[str, Any] = {f"{state}_at": times.get(state) for state in _TIMED_STATES}
    return BatchObject(
        id=batch.id,
        endpoint=batch.path,
        model=batch.model or None,
        errors=BatchErrors(faults) if faults else None,
        input_file_id=batch.input_id,
        status=batch.state,
        output_file_id=batch.output_id,
        error_file_id=batch.errors_id,
        created_at=batch.created_s,
        expires_at=batch.expires_s,
        **reached,
        request_counts=RequestCounts(batch.num_requests, batch.num_good, batch.num_bad),
        usage=BatchUsage(
            usage["input"],
            InputDetails(usage["cached"]),
            usage["output"],
            OutputDetails(usage["reasoning"]),
            usage["input"] + usage["output"],
        ),
        metadata=batch.metadata,
    )


async def create(http: HttpCall, server: Server) -> BatchObject:
    desk = desk_of(server)
    body = read_struct(decode_object(http, V1), BatchBody, V1)
    check_word("endpoint", body.endpoint, ENDPOINTS, V1)
    if body.completion_window != WINDOW:
        message = f"completion_window must be {WINDOW!r}, got {shown(body.completion_window)}"
        raise InvalidParameter(message, param="completion_window")
    check_metadata(body.metadata or {}, V1)
    expiry = body.output_expires_after
    age_s = None if expiry is None else read_age("output_expires_after", _EXPIRY, expiry.anchor, expiry.seconds)
    try:
        file = desk.store.file(body.input_file_id, http.caller)
    except NotFound as error:
        raise InvalidParameter(
            f"input_file_id must be the id of a file of yours, got {shown(body.input_file_id)}", param="input_file_id"
        ) from error
    if file.purpose != "batch":
        message = f"input_file_id must be a file with the purpose 'batch'; {file.id} has {file.purpose!r}"
        raise InvalidParameter(message, param="input_file_id")
    batch = await desk.submit(_PREFIX, http.caller, body.endpoint, file.id, _WINDOW_S, age_s, body.metadata)
    return _shape(batch)


async def list_batches(http: HttpCall, server: Server) -> BatchList:
    desk = desk_of(server)
    page, has_more = page_of(desk.store.batches(http.caller, _PREFIX)[::-1], http.query, PAGE)
    return BatchList.of([_shape(desk.seen(batch)) for batch in page], has_more)


def _batch(http: HttpCall, server: Server) -> StoredBatch:
    return desk_of(server).store.batch(http.path_params["batch_id"], http.caller, _PREFIX)


async def get_batch(http: HttpCall, server: Server) -> BatchObject:
    return _shape(desk_of(server).seen(_batch(http, server)))


async def cancel(http: HttpCall, server: Server) -> BatchObject:
    batch = _batch(http, server)
    if batch.has_ended and batch.state != "cancelled":
        raise InvalidRequest(f"Cannot cancel a batch with status '{batch.state}'.", param="batch_id")
    return _shape(await desk_of(server).cancel(batch))


# --- files ------------------------------------------------------------------------------------------------------------


class FileObject(msgspec.Struct, kw_only=True):
    """A file, without its content."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FileList(_Page):
    """One page of files."""

    data: list[FileObject]


class DeletedFile(msgspec.Struct):
    """A file that was deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


def _file_shape(stored: StoredFile) -> FileObject:
    return FileObject(
        id=stored.id,
        bytes=stored.size_bytes,
        created_at=stored.created_s,
        expires_at=stored.expires_s,
        filename=stored.name,
        purpose=stored.purpose,
    )


async def upload(http: HttpCall, server: Server) -> FileObject:
    desk = desk_of(server)
    if http.media_type != MULTIPART:
        raise InvalidPayload(f"the content type must be {MULTIPART}, got {shown(http.media_type)}")
    parts = await asyncio.to_thread(read_parts, http)
    fields = {part.name: part.content.decode("utf-8", "replace") for part in parts if part.file_name is None}
    file = next((part for part in parts if part.name == "file" and part.file_name is not None), None)
    if file is None:
        raise InvalidParameter("file must be given, as a file of the form", param="file")
    if fields.get("purpose") != "batch":
        value = shown(fields["purpose"]) if "purpose" in fields else "none"
        raise InvalidParameter(f"purpose must be 'batch', got {value}", param="purpose")
    anchor, seconds = map(fields.get, _FILE_EXPIRY)
    age_s = None if anchor is seconds is None else read_age("expires_after", _FILE_EXPIRY, anchor, seconds)
    store = desk.store
    name = (file.file_name or "")[:255]
    stored = await asyncio.to_thread(store.add_file, http.caller, name, "batch", file.content, age_s)
    return _file_shape(stored)


def read_age(param: str, places: tuple[str, str], anchor: object, seconds: object) -> int:
    """The age in seconds at which a file goes. `places`: the names of anchor and seconds. Raises: InvalidParameter."""
    if anchor != "created_at":
        raise InvalidParameter(f"{places[0]} must be 'created_at', got {shown(anchor)}", param=param)
    text = str(seconds)
    if not (text.isascii() and text.isdigit() and len(text) < 9 and LEAST_AGE_S <= int(text) <= MOST_AGE_S):
        message = f"{places[1]} must be an integer from {LEAST_AGE_S} to {MOST_AGE_S}, got {shown(seconds)}"
        raise InvalidParameter(message, param=param)
    return int(text)


async def list_files(http: HttpCall, server: Server) -> FileList:
    found = desk_of(server).store.files(http.caller)
    if purpose := http.query.get("purpose"):
        check_word("purpose", purpose, PURPOSES, V1)
        found = [file for file in found if file.purpose == purpose]
    page, has_more = page_of(in_order(found, http.query), http.query, _FILES_PAGE)
    return FileList.of([_file_shape(file) for file in page], has_more)


async def get_file(http: HttpCall, server: Server) -> FileObject:
    return _file_shape(desk_of(server).store.file(http.path_params["file_id"], http.caller))


async def delete_file(http: HttpCall, server: Server) -> DeletedFile:
    store = desk_of(server).store
    file = store.file(http.path_params["file_id"], http.caller)
    reader = next(
        (batch for batch in store.batches(http.caller) if batch.input_id == file.id and not batch.has_ended), None
    )
    if reader is not None:
        raise Conflict(f"file {file.id} is the input of batch {reader.id}, which has not ended: cancel that first")
    await asyncio.to_thread(store.delete_file, file.id)
    return DeletedFile(file.id)


async def file_content(http: HttpCall, server: Server) -> StreamedReply:
    store = desk_of(server).store
    file = store.file(http.path_params["file_id"], http.caller)
    path = store.content(file.id)
    if not path.exists():
        raise NotFound(f"the content of file {file.id} is gone", param="file_id")
    headers = {"content-length": str(file.size_bytes)}
    return StreamedReply(Head("application/octet-stream", 200, headers), _pieces(path), lambda error: b"")


async def _pieces(path: Path) -> AsyncGenerator[bytes, None]:
    with path.open("rb") as content:
        while piece := await asyncio.to_thread(content.read, _PIECE):
            yield piece


# --- descriptions -----------------------------------------------------------------------------------------------------


def batch_schemas() -> dict[str, Schema]:
    expiry = an_object({"anchor": {"enum": ["created_at"]}, "seconds": INTEGER})
    return {
        "FileUpload": an_object(
            {
                "file": {"type": "string", "format": "binary", "description": "a request of the batch on each line"},
                "purpose": {"enum": ["batch"]},
            },
            {"expires_after[anchor]": {"enum": ["created_at"]}, "expires_after[seconds]": INTEGER},
        ),
        "CreateBatch": an_object(
            {
                "input_file_id": {**TEXT, "description": "a file that was uploaded with the purpose `batch`"},
                "endpoint": {"enum": list(ENDPOINTS)},
                "completion_window": {"enum": [WINDOW]},
            },
            {
                "metadata": {"type": "object", "additionalProperties": TEXT, "maxProperties": MAX_METADATA},
                "output_expires_after": expiry,
            },
        ),
    }


BATCH_PARAMETERS = {
    "file_id_path": parameter("path", "file_id", "the file's id", TEXT),
    "batch_id_path": parameter("path", "batch_id", "the batch's id", TEXT),
    "files_purpose_query": parameter(
        "query", "purpose", "only files of that purpose", {"enum": ["batch", "batch_output"]}
    ),
    "files_order_query": parameter("query", "order", "by age", {"enum": ["asc", "desc"], "default": "desc"}),
    "files_after_query": parameter("query", "after", "the page behind this one", TEXT),
    "files_limit_query": parameter("query", "limit", "how many a page has", {"type": "integer", "minimum": 1}),
}

_operation = partial(AnswerOperation, tag="Batches", scope=Scope.INFERENCE)
_KINDS = ("invalid_request", "invalid_parameter", "unsupported", "unauthorized", "server_error")
_SENDING = (*_KINDS, "invalid_payload", "too_large", "overloaded")


def _one(method: str, path: str, summary: str, answer: AnswerCall, kind: Any, *more: str) -> AnswerOperation:
    """An operation on one file or batch. `kind`: its answer. `more`: further kinds of errors."""
    return _operation(
        method=method,
        path=path,
        summary=summary,
        answers=ERRORS.beside(kind if isinstance(kind, Answer) else json_answer(kind), (*_KINDS, "not_found", *more)),
        parameters=("file_id_path" if "{file_id}" in path else "batch_id_path",),
        answer=answer,
    )


_CONTENT = Answer("it", {"application/octet-stream": TEXT})

BATCH_OPERATIONS = (
    _operation(
        path="/v1/files",
        summary="Upload a file of requests",
        answers=ERRORS.beside(json_answer(FileObject), _SENDING),
        body={MULTIPART: ref("FileUpload")},
        answer=upload,
    ),
    _operation(
        method="GET",
        path="/v1/files",
        summary="The caller's files",
        answers=ERRORS.beside(json_answer(FileList), _KINDS),
        parameters=("files_purpose_query", "files_order_query", "files_after_query", "files_limit_query"),
        answer=list_files,
    ),
    _one("GET", "/v1/files/{file_id}/content", "What is in a file", file_content, _CONTENT),
    _one("GET", "/v1/files/{file_id}", "A file, without its content", get_file, FileObject),
    _one("DELETE", "/v1/files/{file_id}", "Delete a file", delete_file, DeletedFile, "conflict"),
    _operation(
        path="/v1/batches",
        summary="Have a file of requests answered",
        description="Batches wait for every other request, and survive restarts of the server.",
        answers=ERRORS.beside(json_answer(BatchObject), _SENDING),
        body={JSON_MEDIA_TYPE: ref("CreateBatch")},
        answer=create,
    ),
    _operation(
        method="GET",
        path="/v1/batches",
        summary="The caller's batches",
        answers=ERRORS.beside(json_answer(BatchList), _KINDS),
        parameters=("files_after_query", "files_limit_query"),
        answer=list_batches,
    ),
    _one("GET", "/v1/batches/{batch_id}", "A batch", get_batch, BatchObject),
    _one("POST", "/v1/batches/{batch_id}/cancel", "End a batch", cancel, BatchObject),
)
