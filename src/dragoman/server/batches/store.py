"""The files and batches of one server, in a directory of its own, visible to their owners only.

Documents are one file each, written atomically, on any thread, one at a time for each document.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

from dragoman.batch.files import AnswerFile, sync_directory
from dragoman.errors import NotFound, TooLarge

_SUFFIX = ".json"

logger = logging.getLogger("dragoman.server")


State = Literal["validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"]
ENDED: frozenset[State] = frozenset({"completed", "failed", "expired", "cancelled"})
Purpose = Literal["batch", "batch_output", "messages"]

_DAY_S = 24 * 3600.0
_ID = re.compile(r"[a-z]{1,10}[_-][0-9a-f]{24,32}")


class StoreError(Exception):
    """The directory cannot be used; one line."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The directory and its limits. `max_bytes`: of all callers. `max_age_s`: of a file, or of a batch since its end."""

    directory: Path
    max_bytes: int = 10 << 30
    max_caller_bytes: int = 10 << 30
    max_age_s: float = 30 * _DAY_S


class StoredFile(msgspec.Struct, frozen=True):
    """A file. `owner`: the name of the key that it came with, "" = no keys. Times: seconds since the epoch."""

    id: str
    owner: str
    name: str
    purpose: Purpose
    size_bytes: int
    created_s: int
    expires_s: int


class Fault(msgspec.Struct, frozen=True):
    """A fault of a batch. `line`: of its input, from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class StoredBatch(msgspec.Struct, frozen=True):
    """A batch. `path`: that all its requests call. `input_id`: the file of the requests. `times_s`: of each state so
    far.

    `output_id`, `errors_id`: the files of answers, once it has ended. `usage`: tokens by kind. `has_files` False: its
    answers stay where they were written.
    """

    id: str
    owner: str
    path: str
    input_id: str
    created_s: int
    expires_s: int
    state: State = "validating"
    times_s: dict[str, int] = msgspec.field(default_factory=dict)
    num_requests: int = 0
    num_good: int = 0
    num_bad: int = 0
    faults: tuple[Fault, ...] = ()
    output_id: str | None = None
    errors_id: str | None = None
    output_max_age_s: int | None = None
    metadata: dict[str, str] | None = None
    usage: dict[str, int] = msgspec.field(default_factory=dict)
    model: str = ""
    has_files: bool = True

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    def became(self, state: State, now_s: int, **changes: object) -> StoredBatch:
        """The batch, in that state from now on."""
        return msgspec.structs.replace(self, state=state, times_s={**self.times_s, state: now_s}, **changes)


class Store:
    """The directory, open and locked. `clock`: seconds since the epoch."""

    def __init__(self, config: StoreConfig, clock: Callable[[], float] = time.time) -> None:
        """Raises: StoreError if the directory cannot be used, or another server uses it."""
        self.config = config
        self._clock = clock
        root = config.directory
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._contents = root / "contents"
            self._contents.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                raise StoreError(f"{root}: another server uses it; give each server its own directory") from None
            self._files = Records(root / "files", StoredFile)
            self._batches = Records(root / "batches", StoredBatch)
        except OSError as error:
            raise StoreError(
                f"{error.filename or root}: {error.strerror}; it must be a directory to write in"
            ) from error
        self._delete_strays()
        self.sweep()

    def close(self) -> None:
        os.close(self._lock)

    def now_s(self) -> int:
        return int(self._clock())

    # --- files --------------------------------------------------------------------------------------------------------

    def files(self, owner: str) -> list[StoredFile]:
        """The owner's files that lists show, oldest first."""
        self.sweep()
        found = [file for file in self._files.all() if file.owner == owner and file.purpose != "messages"]
        return sorted(found, key=lambda file: (file.created_s, file.id))

    def file(self, file_id: str, owner: str) -> StoredFile:
        """The owner's file. Raises: NotFound."""
        self.sweep()
        found = self._files.get(file_id) if _ID.fullmatch(file_id) else None
        if found is None or found.owner != owner:
            raise NotFound(f"No such File object: {file_id[:80]}", param="file_id")
        return found

    def content(self, file_id: str) -> Path:
        return self._contents / file_id

    def check_room(self, owner: str, num_bytes: int) -> None:
        """Raises: TooLarge if the owner may not add `num_bytes`."""
        sizes = [(file.owner, file.size_bytes) for file in self._files.all()]
        sizes += [
            (batch.owner, _size_of(self.answers(batch.id))) for batch in self._batches.all() if not batch.has_ended
        ]
        of_owner = sum(size for name, size in sizes if name == owner)
        self._check(num_bytes, of_owner, self.config.max_caller_bytes, "your", "--store-gb-per-key")
        self._check(num_bytes, sum(size for _, size in sizes), self.config.max_bytes, "all", "--store-gb")

    @staticmethod
    def _check(num_bytes: int, num_taken: int, most: int, whose: str, option: str) -> None:
        if num_taken + num_bytes > most:
            raise TooLarge(
                f"{whose} files and answers take {num_taken} bytes, {most} allowed ({option}); this needs {num_bytes} more: "
                "delete files that are no longer needed"
            )

    def add_file(
        self, owner: str, name: str, purpose: Purpose, content: bytes, max_age_s: int | None = None
    ) -> StoredFile:
        """Keep a file; it is on the disk when this returns. Runs on a thread. Raises: TooLarge, OSError."""
        self.check_room(owner, len(content))
        file_id = f"file-{secrets.token_hex(12)}"
        write_whole(self.content(file_id), content)
        return self.adopt(file_id, owner, name, purpose, max_age_s)

    def adopt(self, file_id: str, owner: str, name: str, purpose: Purpose, max_age_s: int | None = None) -> StoredFile:
        """Make a file of content that was written before. Raises: OSError."""
        size = _size_of(self.content(file_id))
        age_s = self.config.max_age_s if max_age_s is None else min(max_age_s, self.config.max_age_s)
        now_s = self.now_s()
        made = StoredFile(file_id, owner, name, purpose, size, now_s, now_s + int(age_s))
        self._files.put(made)
        return made

    def delete_file(self, file_id: str) -> None:
        """Delete a file; a batch that reads it continues. Raises: OSError."""
        self._files.drop(file_id)
        self.content(file_id).unlink(missing_ok=True)

    # --- batches ------------------------------------------------------------------------------------------------------

    def batches(self, owner: str | None = None, prefix: str = "") -> list[StoredBatch]:
        """The owner's batches, or all, oldest first. `prefix`: of their ids, before an underscore; "" = any."""
        self.sweep()
        found = [batch for batch in self._batches.all() if owner is None or batch.owner == owner]
        found = [batch for batch in found if not prefix or batch.id.startswith(f"{prefix}_")]
        return sorted(found, key=lambda batch: (batch.created_s, batch.id))

    def batch(self, batch_id: str, owner: str, prefix: str = "") -> StoredBatch:
        """The owner's batch. `prefix`: that its id must have, "" = any. Raises: NotFound."""
        self.sweep()
        is_right = _ID.fullmatch(batch_id) and (not prefix or batch_id.startswith(f"{prefix}_"))
        found = self._batches.get(batch_id) if is_right else None
        if found is None or found.owner != owner:
            raise NotFound(f"No batch found with id '{batch_id[:80]}'", param="batch_id")
        return found

    def put_batch(self, batch: StoredBatch) -> StoredBatch:
        """Write the batch as it is now. Raises: OSError."""
        self._batches.put(batch)
        return batch

    def delete_batch(self, batch: StoredBatch) -> None:
        """Delete a batch that has ended, with the files that only it uses. Raises: OSError."""
        self._batches.drop(batch.id)
        self.answers(batch.id).unlink(missing_ok=True)
        found = self._files.get(batch.input_id)
        if found is not None and found.purpose == "messages":
            self.delete_file(batch.input_id)

    def answers(self, batch_id: str) -> Path:
        """The path of the batch's answers, in the order of their arrival."""
        return self._contents / f"{batch_id}.answers"

    def open_answers(self, batch_id: str) -> AnswerFile:
        """The batch's answers, to append to. Runs on a thread. Raises: BatchError, OSError."""
        os.close(os.open(self.answers(batch_id), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))  # nobody else's
        return AnswerFile(self.answers(batch_id))

    # --- age ----------------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Delete files and ended batches that are too old; an input stays while its batch runs."""
        now_s = self.now_s()
        needed = {batch.input_id for batch in self._batches.all() if not batch.has_ended}
        for stored in self._files.all():
            if stored.expires_s <= now_s and stored.id not in needed:
                self.delete_file(stored.id)
        for batch in self._batches.all():
            ended_s = max(batch.times_s.values(), default=batch.created_s)
            if batch.has_ended and ended_s + self.config.max_age_s <= now_s:
                self.delete_batch(batch)

    def _delete_strays(self) -> None:
        """Delete contents that a killed process wrote before it had recorded them."""
        known = {file.id for file in self._files.all()} | {f"{batch.id}.answers" for batch in self._batches.all()}
        for path in self._contents.iterdir():
            if path.name not in known:
                path.unlink(missing_ok=True)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file; none if it does not exist. Raises: OSError."""
    try:
        with path.open("rb") as file:
            yield from file
    except FileNotFoundError:
        return


class Document(Protocol):
    """`id`: letters, digits, - and _."""

    @property
    def id(self) -> str: ...


D = TypeVar("D", bound=Document)


class Records(Generic[D]):
    """The documents of one kind in a directory, by their ids."""

    def __init__(self, directory: Path, kind: type[D]) -> None:
        """Reads all documents; an unreadable one stays where it is and is logged. Raises: OSError."""
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self._kind = kind
        self._documents: dict[str, D] = {}
        found: list[D] = []
        for path in directory.glob(f"*{_SUFFIX}"):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=kind))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                logger.error("%s: cannot be read, and is left alone: %s", path, " ".join(str(error).split()))
        for document in found:
            self._documents[document.id] = document

    def __len__(self) -> int:
        return len(self._documents)

    def all(self) -> list[D]:
        return list(self._documents.values())

    def get(self, document_id: str) -> D | None:
        return self._documents.get(document_id)

    def put(self, document: D, encoded: bytes | None = None) -> None:
        """Write the document, replacing the one with its id. It is on the disk when this returns. Raises: OSError."""
        path = self._directory / f"{document.id}{_SUFFIX}"
        write_whole(path, encoded or msgspec.json.encode(document))
        self._documents[document.id] = document

    def drop(self, document_id: str) -> None:
        """Delete the document. Raises: OSError."""
        self._documents.pop(document_id, None)
        (self._directory / f"{document_id}{_SUFFIX}").unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write the file completely or not at all. Raises: OSError."""
    beside = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
