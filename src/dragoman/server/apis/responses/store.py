"""Keeps running and stored responses, bounded in number, size and age; keeps callers apart. On the event loop.

Where the server keeps files, stored responses are on disk, too, and outlive it; a thread of its own writes them.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dragoman.errors import NotFound
from dragoman.server.apis.openai_wire.fields import shown
from dragoman.server.apis.responses.schema import Response, ResponseFailure
from dragoman.server.batches.store import Records, write_whole
from dragoman.server.operations import Server
from dragoman.types import ChatPrompt

_SECRET_BYTES = 32

Item = Mapping[str, Any]
"""An item as it goes over the wire; never changed."""

logger = logging.getLogger("dragoman.server")


# --- on disk ----------------------------------------------------------------------------------------------------------


class ResponseDocument(msgspec.Struct, frozen=True):
    """A response as it is kept. `used_s`: seconds since the epoch. `has_ended` False = the call `call_id` makes it."""

    id: str
    owner: str
    used_s: float
    has_ended: bool
    response: Response
    items: tuple[dict[str, Any], ...]
    output: tuple[dict[str, Any], ...] = ()
    call_id: str = ""

    @classmethod
    def begun(cls, response: Response, items: Collection[Item], owner: str, call_id: str) -> ResponseDocument:
        made_of = tuple(dict(item) for item in items)
        return cls(response.id, owner, time.time(), False, response, made_of, call_id=call_id)


class ResponseDisk:
    def __init__(self, directory: Path) -> None:
        """Reads none of them yet. Raises: OSError."""
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self._records: Records[ResponseDocument] | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="dragoman-responses")
        secret = directory / "secret"
        if not secret.exists():
            write_whole(secret, secrets.token_bytes(_SECRET_BYTES))
        self.secret = secret.read_bytes()

    def read(self) -> list[tuple[ResponseDocument, int]]:
        """The responses and their bytes, the longest unused first; unfinished ones have failed. Called once, on a thread."""
        self._records = Records(self._directory, ResponseDocument)
        documents = []
        for found in sorted(self._records.all(), key=lambda record: record.used_s):
            document = found
            if not found.has_ended:
                failure = ResponseFailure("server_error", "the server ended while the response was made")
                response = msgspec.structs.replace(found.response, status="failed", error=failure)
                document = msgspec.structs.replace(found, response=response, has_ended=True)
            encoded = msgspec.json.encode(document)
            if document is not found:
                self.put(document, encoded)
            documents.append((document, len(encoded)))
        return documents

    def put(self, document: ResponseDocument, encoded: bytes) -> None:
        """Keep it, soon. `encoded`: the same as JSON."""
        self._submit(document.id, "is not kept on disk", lambda records: records.put(document, encoded))

    def drop(self, response_id: str) -> None:
        self._submit(response_id, "stays on disk", lambda records: records.drop(response_id))

    def close(self) -> None:
        self._writer.shutdown(wait=True)

    def _submit(self, response_id: str, fault: str, work: Callable[[Records[ResponseDocument]], None]) -> None:
        def write() -> None:
            assert self._records is not None
            try:
                work(self._records)
            except OSError as error:
                logger.error("response %s %s: %s", response_id, fault, error)

        self._writer.submit(write)


_ID = re.compile(r"resp_([0-9a-f]{32})([0-9a-f]{16})")
_ITEM_ID = re.compile(r"[a-z]{2,4}_([0-9a-f]{48})[io][0-9]+")
_NOT_STORED = b"not stored"


# --- the store --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits on stored responses. `max_age_s`: since the last use; None = for ever. `max_responses` 0 = none are stored."""

    max_responses: int = 1000
    max_size_bytes: int = 256 * 2**20
    max_age_s: float | None = 3600.0

    def __str__(self) -> str:
        age = "" if self.max_age_s is None else f", each for {self.max_age_s:g} s after its last use"
        return f"at most {self.max_responses} responses of {self.max_size_bytes} bytes together are kept{age}"


@dataclass(slots=True)
class _Place:
    """A stored response. `used_s`: by the store's clock."""

    document: ResponseDocument
    size_bytes: int
    used_s: float


class ResponseStore:
    """The responses of one server. `clock`: seconds, monotonic."""

    def __init__(
        self,
        limits: StoreLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        running_calls: Callable[[], Collection[str]] = tuple,
        disk: ResponseDisk | None = None,
    ) -> None:
        """`running_calls`: the ids of the calls that are being answered. `disk` None = a restart forgets everything."""
        self.limits = limits or StoreLimits()
        self._clock = clock
        self._disk = disk
        self._secret = secrets.token_bytes(_SECRET_BYTES) if disk is None else disk.secret
        self._running_calls = running_calls
        self._places: OrderedDict[str, _Place] = OrderedDict()  # the longest unused first
        self._size_bytes = 0
        self._running: dict[str, ResponseDocument] = {}
        self._reading: asyncio.Future[None] | None = None

    async def until_read(self) -> None:
        """Return once all that an earlier process has kept is here; the first call has it read, on a thread."""
        if self._disk is None:
            return
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read(self._disk))
        await asyncio.shield(self._reading)  # others wait for it as well

    async def _read(self, disk: ResponseDisk) -> None:
        try:
            documents = await asyncio.to_thread(disk.read)
        except BaseException:
            self._reading = None  # the next call tries again
            raise
        for document, size_bytes in documents:
            used_s = self._clock() - max(time.time() - document.used_s, 0.0)
            self._add(_Place(document, size_bytes, used_s))

    @classmethod
    def of(cls, server: Server) -> ResponseStore:
        settings = server.models.profile.settings
        usual = StoreLimits()
        limits = StoreLimits(
            settings.get("max_stored_responses", usual.max_responses),
            settings.get("max_stored_responses_mb", usual.max_size_bytes >> 20) << 20,
            settings.get("stored_responses_max_age_s", usual.max_age_s),
        )
        disk = None if server.desk is None else ResponseDisk(server.desk.store.config.directory / "responses")
        return cls(limits, running_calls=lambda: [record.call_id for record in server.watch.running], disk=disk)

    @classmethod
    async def found(cls, server: Server) -> ResponseStore:
        store = server.shared(cls.of)
        await store.until_read()
        return store

    async def aclose(self) -> None:
        if self._disk is not None:
            await asyncio.to_thread(self._disk.close)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def __len__(self) -> int:
        return len(self._places)

    # --- ids ----------------------------------------------------------------------------------------------------------

    def new_id(self, caller: str, is_stored: bool) -> str:
        """An id that shows later whose response it was, and whether it was stored."""
        body = secrets.token_hex(16)
        return f"resp_{body}{self._signature(body, caller, is_stored=is_stored)}"

    def _signature(self, body: str, caller: str, *, is_stored: bool) -> str:
        parts = [body.encode(), caller.encode(), b"" if is_stored else _NOT_STORED]
        return hmac.new(self._secret, b"\0".join(parts), hashlib.sha256).hexdigest()[:16]

    def _missing(self, response_id: str, caller: str) -> NotFound:
        found = _ID.fullmatch(response_id)
        if found is not None and found[2] == self._signature(found[1], caller, is_stored=True):
            reason = f"it was deleted, did not end, or has expired ({self.limits})"
        elif found is not None and found[2] == self._signature(found[1], caller, is_stored=False):
            reason = "it was not stored, since the request said store: false"
        else:
            reason = "this server does not know it, or it belongs to another key"
        return NotFound(f"Response with id {shown(response_id)} not found: {reason}", param="response_id")

    # --- running ------------------------------------------------------------------------------------------------------

    def begin(self, running: ResponseDocument) -> None:
        self._forget_ended()
        self._running[running.id] = running
        if running.response.background and self._disk is not None and self.limits.max_responses:
            self._disk.put(running, msgspec.json.encode(running))

    def running(self, response_id: str, caller: str) -> ResponseDocument | None:
        found = self._running.get(response_id)
        if found is None or found.owner != caller or found.call_id not in self._running_calls():
            return None
        return found

    def end(self, response: Response, output: Collection[Item]) -> None:
        """Keeps an ended response if it is to be stored; does nothing if it had ended before."""
        running = self._running.pop(response.id, None)
        if running is None or not response.store or not self.limits.max_responses:
            return
        items = tuple(dict(item) for item in output)
        document = msgspec.structs.replace(running, response=response, output=items, used_s=time.time(), has_ended=True)
        encoded = msgspec.json.encode(document)
        self._expire()
        if len(encoded) > self.limits.max_size_bytes:
            return
        self._add(_Place(document, len(encoded), self._clock()))
        if self._disk is not None:
            self._disk.put(document, encoded)

    def _forget_ended(self) -> None:
        """Forget calls that ended without saying so: their clients left, or they failed before the first token."""
        if len(self._running) > 64:
            calls = set(self._running_calls())
            if len(self._running) > 2 * len(calls):
                self._running = {key: call for key, call in self._running.items() if call.call_id in calls}

    # --- stored -------------------------------------------------------------------------------------------------------

    def _add(self, place: _Place) -> None:
        self._places[place.document.id] = place
        self._size_bytes += place.size_bytes
        while len(self._places) > self.limits.max_responses or self._size_bytes > self.limits.max_size_bytes:
            self._drop(next(iter(self._places)))

    def get(self, response_id: str, caller: str) -> ResponseDocument:
        """The caller's stored response, which counts as used. Raises: NotFound, saying why."""
        self._expire()
        place = self._places.get(response_id)
        if place is None or place.document.owner != caller:
            raise self._missing(response_id, caller)
        place.used_s = self._clock()
        self._places.move_to_end(response_id)
        return place.document

    def known(self, response_id: str, caller: str) -> ResponseDocument:
        """The same, or the one that is being made."""
        return self.running(response_id, caller) or self.get(response_id, caller)

    def delete(self, response_id: str, caller: str) -> None:
        self.get(response_id, caller)
        self._drop(response_id)

    def item(self, item_id: str, caller: str) -> Item:
        """The item of that id, of any response of the caller's. Raises: NotFound, saying why."""
        found = _ITEM_ID.fullmatch(item_id)
        if found is None:
            raise NotFound(f"Item with id {shown(item_id)} not found: this server did not make it")
        kept = self.get(f"resp_{found[1]}", caller)
        for item in (*kept.output, *kept.items):
            if item.get("id") == item_id:
                return item
        raise NotFound(f"Item with id {shown(item_id)} not found: response {kept.id} has no item with that id")

    def _expire(self) -> None:
        if self.limits.max_age_s is None:
            return
        oldest_s = self._clock() - self.limits.max_age_s
        while self._places and next(iter(self._places.values())).used_s < oldest_s:
            self._drop(next(iter(self._places)))

    def _drop(self, response_id: str) -> None:
        self._size_bytes -= self._places.pop(response_id).size_bytes
        if self._disk is not None:
            self._disk.drop(response_id)


# --- context of a call ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Asking:
    """One call. `paths`: for each message, the item that it came from. `begun`: set when the response begins."""

    store: ResponseStore
    server: Server | None = None
    paths: list[str] = field(default_factory=list)
    fitted: ChatPrompt | None = None
    begun: asyncio.Future[ResponseDocument] | None = None
    is_streamed: bool = False

    def begin(self, running: ResponseDocument, *, is_streamed: bool) -> None:
        self.store.begin(running)
        self.is_streamed = is_streamed
        if self.begun is not None:
            self.begun.set_result(running)


_ASKING: ContextVar[Asking | None] = ContextVar("dragoman_responses_asking", default=None)


def current_asking() -> Asking:
    """The context of the call; outside of calls, one without a server and with an empty store."""
    return _ASKING.get() or Asking(ResponseStore())


def set_asking(asking: Asking) -> None:
    _ASKING.set(asking)
