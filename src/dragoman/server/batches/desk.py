"""Answers batches in the background, and continues those of an earlier process. On the event loop; files on threads.

An answer is on the disk before the next request takes its place; after a restart only unanswered requests are sent.
Lists of files and batches are told in pages, in all APIs. Source: OpenAI API reference, batches; Anthropic API reference,
message batches.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from dragoman.batch.files import (
    AnswerLine,
    BadLine,
    BatchError,
    BatchRequest,
    bad_line,
    numbered_lines,
    read_line,
    usage_of,
)
from dragoman.batch.run import Answer, Batch, Tally, Unreachable, open_files
from dragoman.coroutines import cancel_all
from dragoman.errors import InvalidParameter, TooLarge, UnsupportedFeature
from dragoman.server.api import Reply
from dragoman.server.batches.store import Fault, State, Store, StoredBatch, lines_of

CONCURRENCY = 32  # requests of one batch that are under way
MAX_ACTIVE = 4  # batches at once; the others wait
MAX_FAULTS = 100  # of a batch that is refused, which are told
_UNAVAILABLE = 503

logger = logging.getLogger("dragoman.server")

Ask = Callable[[str, bytes, str], Awaitable[Reply]]
"""Answers `POST path` with a body in the background, for a caller."""
MAX_SHOWN = 80


T = TypeVar("T")


class Desk:
    def __init__(self, store: Store, ask: Ask) -> None:
        self.store = store
        self._ask = ask
        self._places = asyncio.Semaphore(MAX_ACTIVE)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._tallies: dict[str, Tally] = {}

    def start(self) -> None:
        """Continue the batches of an earlier process."""
        for batch in self.store.batches():
            if not batch.has_ended:
                self._begin(batch)

    async def submit(
        self,
        prefix: str,
        owner: str,
        path: str,
        input_id: str,
        max_age_s: int,
        output_max_age_s: int | None = None,
        metadata: dict[str, str] | None = None,
        has_files: bool = True,
        num_requests: int = 0,
    ) -> StoredBatch:
        """Accept a batch; it is on the disk when this returns. `prefix`: of its id. Raises: OSError."""
        now_s = self.store.now_s()
        batch = StoredBatch(
            id=f"{prefix}_{secrets.token_hex(16)}",
            owner=owner,
            path=path,
            input_id=input_id,
            created_s=now_s,
            expires_s=now_s + max_age_s,
            output_max_age_s=output_max_age_s,
            metadata=metadata,
            has_files=has_files,
            num_requests=num_requests,
        )
        await asyncio.to_thread(self.store.put_batch, batch)
        self._begin(batch)
        return batch

    def seen(self, batch: StoredBatch) -> StoredBatch:
        """The batch with its present counts."""
        tally = self._tallies.get(batch.id)
        if tally is None:
            return batch
        num_bad = tally.num_errors + tally.num_errors_before
        return msgspec.structs.replace(batch, num_good=tally.num_done - num_bad, num_bad=num_bad)

    async def cancel(self, batch: StoredBatch) -> StoredBatch:
        """End a batch; answers so far are kept."""
        if batch.has_ended or batch.state in ("cancelling", "finalizing"):
            return batch
        changed = self.seen(batch).became("cancelling", self.store.now_s())
        cancelled = await asyncio.to_thread(self.store.put_batch, changed)
        task = self._tasks.get(batch.id)
        if task is not None:
            task.cancel()
        return cancelled

    async def aclose(self) -> None:
        await self.stop()
        self.store.close()

    async def stop(self) -> None:
        """Send no more requests; a later process continues."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        await cancel_all(tasks)

    # --- running ------------------------------------------------------------------------------------------------------

    def _begin(self, batch: StoredBatch) -> None:
        task = asyncio.create_task(self._run(batch.id, batch.owner), name=f"batch {batch.id}")
        self._tasks[batch.id] = task
        task.add_done_callback(lambda done: self._ended(batch.id, done))

    def _ended(self, batch_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(batch_id) is task:
            del self._tasks[batch_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("batch %s stopped; the next start of the server goes on with it", batch_id, exc_info=error)

    async def _run(self, batch_id: str, owner: str) -> None:
        faults: tuple[Fault, ...] = ()
        try:
            left_s = max(self.store.batch(batch_id, owner).expires_s - self.store.now_s(), 0)
            async with asyncio.timeout(left_s):
                faults = await self._answer_all(batch_id, owner)
            state: State = "failed" if faults else "completed"
        except TimeoutError:
            state = "expired"
        except (BatchError, FileNotFoundError) as error:
            faults, state = (Fault("batch_failed", str(error)),), "failed"
        except asyncio.CancelledError:
            if self.store.batch(batch_id, owner).state != "cancelling" or batch_id not in self._tasks:
                raise  # the server ends, and another one goes on
            state = "cancelled"
        batch = self.store.batch(batch_id, owner)
        if state == "completed":
            batch = await self._put(batch.became("finalizing", self.store.now_s()))
        await asyncio.to_thread(_finish, self.store, batch, state, faults)

    async def _put(self, batch: StoredBatch) -> StoredBatch:
        return await asyncio.to_thread(self.store.put_batch, batch)

    async def _answer_all(self, batch_id: str, owner: str) -> tuple[Fault, ...]:
        """The faults of the batch, () once each request has its answer. Raises: BatchError, OSError."""
        async with self._places:
            batch, store = self.store.batch(batch_id, owner), self.store
            if batch.state == "cancelling":
                raise asyncio.CancelledError
            if batch.state == "finalizing":
                return ()
            source = store.content(batch.input_id)
            if batch.state == "validating":
                num_requests, model, faults = await asyncio.to_thread(checked, source, batch.path)
                if faults:
                    return faults
                changed = batch.became("in_progress", store.now_s(), num_requests=num_requests, model=model)
                batch = await self._put(changed)
            with await asyncio.to_thread(store.open_answers, batch_id) as answers:
                files = await asyncio.to_thread(open_files, source, answers, retries_errors=False)
                self._tallies[batch_id] = files.tally
                patience_s = float(max(batch.expires_s - store.now_s(), 1))
                sender = _InnerSender(self._ask, store, owner)
                try:
                    await Batch(files, sender, CONCURRENCY, lambda tally: None, patience_s).run()
                finally:
                    del self._tallies[batch_id]
        return ()


class _InnerSender:
    """A `Sender` that has this server answer."""

    def __init__(self, ask: Ask, store: Store, owner: str) -> None:
        self._ask = ask
        self._store = store
        self._owner = owner

    async def send(self, path: str, body: bytes) -> Answer:
        """Raises: BatchError if the owner's answers take all the room, Unreachable."""
        try:
            self._store.check_room(self._owner, 0)
        except TooLarge as error:
            raise BatchError(error.message) from error
        try:
            reply = await self._ask(path, body, self._owner)
        except ConnectionAbortedError as error:  # the answer broke off
            raise Unreachable(str(error)) from error
        if reply.status == _UNAVAILABLE:  # a model is loaded, or was unloaded: it may be loaded again
            raise Unreachable("no model answers")
        return Answer(reply.status, reply.headers, reply.body)


class _ModelNamed(msgspec.Struct):
    model: object = None


def checked(source: Path, path: str) -> tuple[int, str, tuple[Fault, ...]]:
    """(Number of requests in the input, model of the first, faults). Stops at `MAX_FAULTS`."""
    faults: list[Fault] = []
    seen: dict[str, int] = {}
    num_requests, model = 0, ""
    for number, line in _lines(source):
        num_requests += 1
        request = read_line(number, line)
        if isinstance(request, BadLine):
            faults.append(Fault(request.code, request.message, number, request.param))
        elif request.path != path:
            message = f"line {number}: url {request.path}: must be {path}, as the batch's endpoint"
            faults.append(Fault("mismatched_url", message, number, "url"))
        elif request.custom_id in seen:
            message = (
                f"line {number}: custom_id {request.custom_id[:80]!r} stands on line {seen[request.custom_id]} already"
            )
            faults.append(Fault("duplicate_custom_id", message, number, "custom_id"))
        else:
            seen[request.custom_id] = number
            model = model or _model_of(request)  # JSON nested too deeply to be read does not count
        if len(faults) >= MAX_FAULTS:
            break
    if not num_requests:
        faults.append(Fault("empty_file", "the input holds no request"))
    return num_requests, model, tuple(faults)


def _lines(source: Path) -> Iterator[tuple[int, bytes]]:
    try:
        yield from numbered_lines(source)
    except FileNotFoundError:  # deleted by its owner
        return


def _model_of(request: BatchRequest) -> str:
    try:
        found = msgspec.json.decode(request.body, type=_ModelNamed).model
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return found if isinstance(found, str) else ""


def _finish(store: Store, batch: StoredBatch, state: State, faults: tuple[Fault, ...]) -> None:
    """Put the answers into files and the batch into its last state. Runs on a thread. Raises: OSError."""
    files = _OutputFiles(store, batch)
    usage = usage_of(b"{}")
    answered: set[str | None] = set()
    for line in lines_of(store.answers(batch.id)):
        found = msgspec.json.decode(line, type=AnswerLine)
        answered.add(found.custom_id)
        files.add(line, is_good=found.is_good)
        if found.response is not None and found.is_good:
            added = usage_of(bytes(found.response.body))
            usage = {kind: count + added[kind] for kind, count in usage.items()}
    if state in ("expired", "cancelled") and batch.has_files:
        for line in _unanswered(store.content(batch.input_id), answered, state):
            files.add(line, is_good=False)
    output_id, errors_id = files.close()
    ended = batch.became(
        state,
        store.now_s(),
        faults=faults,
        output_id=output_id,
        errors_id=errors_id,
        num_good=files.num_good,
        num_bad=files.num_bad,
        usage=usage,
    )
    store.put_batch(ended)
    if batch.has_files:
        store.answers(batch.id).unlink(missing_ok=True)


def _unanswered(source: Path, answered: set[str | None], state: State) -> Iterator[bytes]:
    details = {
        "expired": "the batch's completion window ended before this request was answered",
        "cancelled": "the batch was cancelled before this request was answered",
    }[state]
    for number, line in _lines(source):
        request = read_line(number, line)
        if request.custom_id not in answered:
            yield bad_line(BadLine(number, request.custom_id, f"batch_{state}", details))


class _OutputFiles:
    """The good answers and the errors of an ended batch. Ids follow from the batch's, so the files can be rewritten."""

    def __init__(self, store: Store, batch: StoredBatch) -> None:
        self.num_good = 0
        self.num_bad = 0
        self._store = store
        self._batch = batch
        self._ids = {is_good: _file_id(batch.id, is_good=is_good) for is_good in (True, False)}
        self._files = (
            {}
            if not batch.has_files
            else {
                is_good: os.fdopen(
                    os.open(store.content(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb"
                )
                for is_good, name in self._ids.items()
            }
        )

    def add(self, line: bytes, *, is_good: bool) -> None:
        if self._files:
            self._files[is_good].write(line)
        self.num_good += is_good
        self.num_bad += not is_good

    def close(self) -> tuple[str | None, str | None]:
        """Keep the files. Returns their ids, None for an empty one."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        return self._kept(is_good=True), self._kept(is_good=False)

    def _kept(self, *, is_good: bool) -> str | None:
        file_id, batch = self._ids[is_good], self._batch
        if not self._files:
            return None
        if not (self.num_good if is_good else self.num_bad):
            self._store.content(file_id).unlink()
            return None
        name = f"{batch.id}_{'output' if is_good else 'error'}.jsonl"
        self._store.adopt(file_id, batch.owner, name, "batch_output", batch.output_max_age_s)
        return file_id


def _file_id(batch_id: str, *, is_good: bool) -> str:
    kind = b"output" if is_good else b"errors"
    return f"file-{blake2b(batch_id.encode(), digest_size=12, person=kind).hexdigest()}"


class PageNames(NamedTuple):
    """An API's names of page parameters, and lengths of pages. `before` "" = it has none."""

    after: str
    before: str
    usual: int
    most: int


class HasDesk(Protocol):
    @property
    def desk(self) -> Desk | None: ...


def desk_of(server: HasDesk) -> Desk:
    """The desk for files and batches. Raises: UnsupportedFeature without a directory for them."""
    if server.desk is None:
        raise UnsupportedFeature("files and batches need a directory: start the server with --store-dir DIRECTORY")
    return server.desk


def in_order(found: list[T], query: Mapping[str, str]) -> list[T]:
    """The list, oldest first, in the order that the query asks for. Raises: InvalidParameter."""
    order = query.get("order") or "desc"
    if order not in ("asc", "desc"):
        raise InvalidParameter(f"order must be asc or desc, got {order[:MAX_SHOWN]!r}", param="order")
    return found[::-1] if order == "desc" else found


def page_of(
    found: Sequence[T], query: Mapping[str, str], names: PageNames, id_of: Callable[[T], str] = attrgetter("id")
) -> tuple[list[T], bool]:
    """The part of the list that the query asks for, and whether there is more. Raises: InvalidParameter."""
    ids = list(map(id_of, found))
    begin, end = 0, len(ids)
    limit = _limit(query, names)
    if after := query.get(names.after):
        begin = _position(ids, after, names.after) + 1
    before = query.get(names.before) if names.before else None
    if before:
        end = _position(ids, before, names.before)
        if not after:
            begin = max(begin, end - limit)
            return list(found[begin:end]), begin > 0
    return list(found[begin : min(end, begin + limit)]), begin + limit < end


def _position(ids: Sequence[str], wanted: str, name: str) -> int:
    try:
        return ids.index(wanted)
    except ValueError:
        raise InvalidParameter(f"{name} must be an id of this list, got {wanted[:MAX_SHOWN]!r}", param=name) from None


def _limit(query: Mapping[str, str], names: PageNames) -> int:
    text = query.get("limit") or str(names.usual)
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= names.most):
        message = f"limit must be an integer from 1 to {names.most}, got {text[:MAX_SHOWN]!r}"
        raise InvalidParameter(message, param="limit")
    return int(text)
