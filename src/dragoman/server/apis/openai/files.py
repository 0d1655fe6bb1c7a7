"""Files that clients upload for batches, and those that batches answer with.

Does: read forms, answer in OpenAI's shapes. Does not: keep files (`server.batches` does). On the event loop.
Source: OpenAI API reference, files.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Literal

import msgspec

from dragoman.errors import Conflict, InvalidParameter, InvalidPayload, NotFound
from dragoman.server.api import Head, HttpCall, StreamedReply
from dragoman.server.apis.openai_wire.fields import check_word, shown
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.batches.keeping import PageNames, desk_of, in_order, page_of
from dragoman.server.batches.store import StoredFile
from dragoman.server.http.multipart import MULTIPART, read_parts
from dragoman.server.operations import Server

PAGE = PageNames("after", "", 10_000, 10_000)  # OpenAI API reference, list files
PURPOSES = ("batch", "batch_output")
LEAST_AGE_S, MOST_AGE_S = 3600, 30 * 24 * 3600  # OpenAI API reference, expires_after
_EXPIRY = ("expires_after[anchor]", "expires_after[seconds]")
_PIECE = 1 << 18


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


class FileList(msgspec.Struct):
    """One page of files."""

    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class DeletedFile(msgspec.Struct):
    """A file that was deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


def _shape(stored: StoredFile) -> FileObject:
    return FileObject(
        id=stored.id,
        bytes=stored.size_bytes,
        created_at=stored.created_s,
        expires_at=stored.expires_s,
        filename=stored.name,
        purpose=stored.purpose,
    )


async def upload(http: HttpCall, server: Server) -> FileObject:
    """Keep the file of a form. Raises: ServerError."""
    desk = desk_of(server)
    if http.media_type != MULTIPART:
        raise InvalidPayload(f"the content type must be {MULTIPART}, got {shown(http.media_type)}")
    parts = await asyncio.to_thread(read_parts, http)
    fields = {part.name: part.content.decode("utf-8", "replace") for part in parts if part.file_name is None}
    file = next((part for part in parts if part.name == "file" and part.file_name is not None), None)
    if file is None:
        raise InvalidParameter("file must be given, as a file of the form", param="file")
    if fields.get("purpose") != "batch":
        told = shown(fields["purpose"]) if "purpose" in fields else "none"
        raise InvalidParameter(f"purpose must be 'batch', got {told}", param="purpose")
    anchor, seconds = map(fields.get, _EXPIRY)
    age_s = None if anchor is seconds is None else read_age("expires_after", _EXPIRY, anchor, seconds)
    store = desk.store
    name = (file.file_name or "")[:255]
    stored = await asyncio.to_thread(store.add_file, http.caller, name, "batch", file.content, age_s)
    return _shape(stored)


def read_age(param: str, places: tuple[str, str], anchor: object, seconds: object) -> int:
    """The age in seconds at which a file goes. `places`: the names of anchor and seconds. Raises: InvalidParameter."""
    if anchor != "created_at":
        raise InvalidParameter(f"{places[0]} must be 'created_at', got {shown(anchor)}", param=param)
    text = str(seconds)
    if not (text.isascii() and text.isdigit() and len(text) < 9 and LEAST_AGE_S <= int(text) <= MOST_AGE_S):
        told = f"{places[1]} must be an integer from {LEAST_AGE_S} to {MOST_AGE_S}, got {shown(seconds)}"
        raise InvalidParameter(told, param=param)
    return int(text)


async def list_files(http: HttpCall, server: Server) -> FileList:
    """A page of the caller's files. Raises: ServerError."""
    found = desk_of(server).store.files(http.caller)
    if purpose := http.query.get("purpose"):
        check_word("purpose", purpose, PURPOSES, V1)
        found = [one for one in found if one.purpose == purpose]
    page, has_more = page_of(in_order(found, http.query), http.query, PAGE)
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return FileList([_shape(one) for one in page], first, last, has_more)


async def get_file(http: HttpCall, server: Server) -> FileObject:
    """One file, without its content. Raises: ServerError."""
    return _shape(desk_of(server).store.file(http.path_params["file_id"], http.caller))


async def delete_file(http: HttpCall, server: Server) -> DeletedFile:
    """Delete a file. Raises: ServerError; Conflict while a batch reads it."""
    store = desk_of(server).store
    file = store.file(http.path_params["file_id"], http.caller)
    reader = next((one for one in store.batches(http.caller) if one.input_id == file.id and not one.has_ended), None)
    if reader is not None:
        raise Conflict(f"file {file.id} is the input of batch {reader.id}, which has not ended: cancel that first")
    await asyncio.to_thread(store.delete_file, file.id)
    return DeletedFile(file.id)


async def file_content(http: HttpCall, server: Server) -> StreamedReply:
    """The content of a file. Raises: ServerError."""
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
