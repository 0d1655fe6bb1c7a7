"""The file of a batch's answers: a line for each request, in the order in which they were finished.

Each line is one write, so a killed process leaves whole lines. A power failure loses lines that were not synced: `run`
syncs once a second, as a sync per line would cost more than most answers. `sync` may run on another thread than `add`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dragoman.batch.requests import BadLine, BatchError, key_of

_BEGIN = b'{"id":"batch_req_'
_ALLOWED = "must be a file of a batch's answers, or one that does not exist yet"
_PIECE = 1 << 20  # bytes read at once in search of the last whole line


class _Failure(msgspec.Struct):
    code: str | None = None
    message: str | None = None
    param: str | None = None
    line: int | None = None


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _AnswerLine(msgspec.Struct):
    """Source: OpenAI API reference, the request output object of batches; `error.line` is as in its `errors.data`."""

    id: str
    custom_id: str | None
    response: _Response | None
    error: _Failure | None


class _ReadResponse(msgspec.Struct):
    status_code: int


class _ReadLine(msgspec.Struct):
    custom_id: str | None
    response: _ReadResponse | None
    error: _Failure | None


@dataclass(frozen=True, slots=True)
class Answered:
    """The request of an answer line. `key`: see `requests.key_of`."""

    line: int
    custom_id: str | None
    key: bytes
    is_error: bool


def answer_line(custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    response = _Response(status, request_id, msgspec.Raw(_one_line(body)))
    return msgspec.json.encode(_AnswerLine(_new_id(), custom_id, response, None)) + b"\n"


def bad_line(bad: BadLine) -> bytes:
    failure = _Failure(bad.code, bad.message, bad.param, bad.line)
    return msgspec.json.encode(_AnswerLine(_new_id(), bad.custom_id, None, failure)) + b"\n"


class AnswerFile:
    """The file, open and locked. Use it in a `with` block."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, and cut off a torn last line. Raises: BatchError (in use, or other content),
        OSError.
        """
        self.path = path
        self._file = _locked(path)
        self._is_dirty = False
        try:
            self._mend()
        except BaseException:
            os.close(self._file)
            raise

    def answered(self) -> Iterator[Answered]:
        """The request that each line answers. Raises: BatchError naming a line that is not an answer; OSError."""
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    read = msgspec.json.decode(line, type=_ReadLine)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    told = " ".join(str(error).split())
                    raise BatchError(f"{self.path} line {number}: {told}; {_ALLOWED}") from None
                source = read.error.line if read.error is not None and read.error.line is not None else 0
                is_error = read.error is not None or read.response is None or read.response.status_code >= 400
                yield Answered(number, read.custom_id, key_of(read.custom_id, source), is_error)

    def drop(self, is_dropped: Callable[[Answered], bool]) -> int:
        """Remove these lines, by a complete new file. Returns their number. Raises: BatchError, OSError."""
        marks = bytearray(is_dropped(one) for one in self.answered())
        if not any(marks):
            return 0
        place = self.path.resolve()  # keep a symbolic link
        beside = place.with_name(place.name + ".new")
        kept = _locked(beside)  # before the replacement makes it visible to others
        try:
            os.ftruncate(kept, 0)
            with self.path.open("rb") as lines, open(os.dup(kept), "ab") as file:
                file.writelines(line for line, mark in zip(lines, marks, strict=True) if not mark)
            os.fsync(kept)
            beside.replace(place)
            sync_directory(place.parent)
        except BaseException:
            os.close(kept)
            beside.unlink(missing_ok=True)
            raise
        os.close(self._file)
        self._file = kept
        return sum(marks)

    def add(self, line: bytes) -> None:
        """Write one line, in one piece. Raises: OSError, such as for a full disk; a part may then be written."""
        self._is_dirty = True
        rest = memoryview(line)
        while rest:  # a nearly full disk takes only a part
            rest = rest[os.write(self._file, rest) :]

    def sync(self) -> None:
        """Write everything to the disk itself. Raises: OSError."""
        if self._is_dirty:
            self._is_dirty = False
            os.fsync(self._file)

    def close(self) -> None:
        try:
            self.sync()
        finally:
            os.close(self._file)

    def __enter__(self) -> AnswerFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _mend(self) -> None:
        """Cut the file after its last whole line; a line that only lacks its end of line gets it."""
        size = end = os.fstat(self._file).st_size
        tail = b""
        while end and b"\n" not in tail:
            begin = max(0, end - _PIECE)
            tail = os.pread(self._file, end - begin, begin) + tail
            end = begin
        torn = tail.rpartition(b"\n")[2]
        if not torn:
            return
        try:
            msgspec.json.decode(torn, type=_ReadLine)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # A file that is not a batch's must not lose its text. A torn line is cut if it begins as our lines do, or if
            # lines precede it, which are judged when they are read.
            if size == len(torn) and not (torn.startswith(_BEGIN) or _BEGIN.startswith(torn)):
                raise BatchError(f"{self.path}: {_ALLOWED}") from None
            os.ftruncate(self._file, size - len(torn))
        else:
            self.add(b"\n")


def sync_directory(path: Path) -> None:
    """Write the directory to the disk, so that its files keep their names after a power failure. Raises: OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _locked(path: Path) -> int:
    """The file's descriptor, locked. Raises: BatchError, OSError."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        except FileNotFoundError:
            pass
        except BaseException as error:
            os.close(file)
            if isinstance(error, BlockingIOError):
                raise BatchError(f"{path}: another batch is writing it; wait, or name another file") from None
            raise
        os.close(file)  # replaced between opening and locking


def _one_line(body: bytes) -> bytes:
    """The body as JSON without line ends."""
    try:
        value = msgspec.json.decode(body, type=msgspec.Raw if b"\n" not in body else object)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = body.decode("utf-8", "replace")
    return msgspec.json.encode(value)


def _new_id() -> str:
    return "batch_req_" + os.urandom(16).hex()
