"""The files of a batch: its requests, a line each, and their answers, in the order in which they were finished.

Each answer is one write, so a killed process leaves whole lines. A power failure loses lines that were not synced: `run`
syncs once a second, as a sync per line would cost more than most answers. `sync` may run on another thread than the rest.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages")
"""A line's `url`: the APIs that OpenAI's batches have and that are served here, and Anthropic's."""

MAX_LINE_BYTES = 128 * 1024 * 1024  # twice a server's default limit of a body
_KEY_BYTES = 16  # of digests: with 10**9 custom_ids, the chance of a collision is 10**-21
_SHOWN = 80  # characters of a wrong value in its message
_MANY = 4096  # keys that are looked up at once
_BEGIN = b'{"id":"batch_req_'
_ALLOWED = "must be a file of a batch's answers, or one that does not exist yet"
_PIECE = 1 << 20  # bytes read at once in search of the last whole line


class BatchError(Exception):
    """A batch cannot be run, or cannot continue; one line."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    line: int
    custom_id: str
    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class BadLine:
    """An invalid line. `custom_id` None = it has no readable one. `param`: the wrong field."""

    line: int
    custom_id: str | None
    code: str
    message: str
    param: str | None = None


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The non-empty lines of the file with their numbers from 1; too long ones are cut. Raises: OSError."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            rest = line
            while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE_BYTES + 1)
            if line.strip():
                yield number, line


def read_line(number: int, line: bytes) -> BatchRequest | BadLine:
    """The request of a line, or its problem."""
    if len(line) > MAX_LINE_BYTES:
        return BadLine(number, None, "line_too_long", f"line {number}: must have at most {MAX_LINE_BYTES} bytes")
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"line {number}: must be a JSON object with custom_id, method, url and body: {_plain(error)}"
        return BadLine(number, None, "invalid_json_line", message)
    custom_id = _text(fields.get("custom_id"))
    for name, allowed, is_right in (
        ("custom_id", "a text that is not empty", bool(custom_id)),
        ("method", '"POST"', _text(fields.get("method")) == "POST"),
        ("url", "one of " + ", ".join(PATHS), _text(fields.get("url")) in PATHS),
        ("body", "an object", bytes(fields.get("body", b"")).lstrip()[:1] == b"{"),
    ):
        if not is_right:
            return _wrong(number, custom_id, name, _shown(fields.get(name)), allowed)
    body = bytes(fields["body"])
    if msgspec.json.decode(body, type=_Streamed).stream:
        return _wrong(number, custom_id, "body.stream", "true", "false or left out: answers of a batch are whole")
    return BatchRequest(number, str(custom_id), str(_text(fields["url"])), body)


class RequestIndex:
    """The requests of a file, 16 bytes each, and which are answered. `num_lines`: non-empty lines."""

    def __init__(self, path: Path) -> None:
        """Read the file once. Raises: BatchError naming a duplicate custom_id; OSError."""
        keys = bytearray()
        for number, line in numbered_lines(path):
            keys += key_of(_custom_id(line), number)
        found = np.frombuffer(bytes(keys), dtype=f"S{_KEY_BYTES}")
        self._order = np.argsort(found, kind="stable")
        self._keys: NDArray[np.bytes_] = found[self._order]
        self.num_lines = len(found)
        self.is_answered: NDArray[np.bool_] = np.zeros(self.num_lines, dtype=bool)
        same = np.flatnonzero(self._keys[1:] == self._keys[:-1])
        if len(same):
            first = same[np.argmin(self._order[same + 1])]
            raise BatchError(_told_twice(path, int(self._order[first]), int(self._order[first + 1])))

    @property
    def num_left(self) -> int:
        return self.num_lines - int(np.count_nonzero(self.is_answered))

    def note_answers(self, keys: Iterator[bytes]) -> Iterator[tuple[bool, bool]]:
        """Mark the lines of these keys as answered. Yields for each: whether it exists, and was answered before."""
        many: list[bytes] = []
        for key in keys:
            many.append(key)
            if len(many) == _MANY:
                yield from self._noted(many)
                many = []
        yield from self._noted(many)

    def _noted(self, keys: Sequence[bytes]) -> Iterator[tuple[bool, bool]]:
        wanted = np.array(keys, dtype=self._keys.dtype)
        places = np.searchsorted(self._keys, wanted)
        for key, place in zip(wanted, places, strict=True):
            is_there = place < self.num_lines and self._keys[place] == key
            line = self._order[place] if is_there else 0
            yield bool(is_there), bool(is_there and self.is_answered[line])
            if is_there:
                self.is_answered[line] = True


def key_of(custom_id: str | None, line: int) -> bytes:
    """The key of a line: of its custom_id or, if that cannot be read, of its number."""
    name = f"line {line}" if custom_id is None else f"id {custom_id}"
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()


class _Streamed(msgspec.Struct):
    stream: object = None


class _Named(msgspec.Struct):
    custom_id: object = None


def _custom_id(line: bytes) -> str | None:
    try:
        found = msgspec.json.decode(line, type=_Named).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, str) and found and len(line) <= MAX_LINE_BYTES else None


def _told_twice(path: Path, first: int, second: int) -> str:
    """`first`, `second`: indices among the lines that are not empty."""
    found = {}
    for index, (number, line) in enumerate(numbered_lines(path)):
        if index in (first, second):
            found[index] = number, line
        if index == second:
            break
    shown = msgspec.json.encode(_custom_id(found[second][1])).decode()
    where = f"{path} line {found[second][0]}"
    return f"{where}: custom_id {shown} stands on line {found[first][0]} already; must be another one on each line"


def _text(raw: msgspec.Raw | None) -> str | None:
    if raw is None:
        return None
    value = msgspec.json.decode(raw)
    return value if isinstance(value, str) and value else None


def _shown(raw: msgspec.Raw | None) -> str:
    if raw is None:
        return "missing"
    text = bytes(raw).decode("utf-8", "replace")
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _wrong(number: int, custom_id: str | None, name: str, shown: str, allowed: str) -> BadLine:
    message = f"{name} is missing" if shown == "missing" else f"{name} {shown}"
    return BadLine(number, custom_id, "invalid_request", f"line {number}: {message}: must be {allowed}", name)


def _plain(error: Exception) -> str:
    return " ".join(str(error).split())


class _Failure(msgspec.Struct):
    code: str | None = None
    message: str | None = None
    param: str | None = None
    line: int | None = None


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _WrittenLine(msgspec.Struct):
    """Source: OpenAI API reference, the request output object of batches; `error.line` is as in its `errors.data`."""

    id: str
    custom_id: str | None
    response: _Response | None
    error: _Failure | None


class _ReadResponse(msgspec.Struct):
    status_code: int
    body: msgspec.Raw = msgspec.Raw(b"null")


class AnswerLine(msgspec.Struct):
    """The fields of an answer line that are read. `error` None = there is a response."""

    custom_id: str | None
    response: _ReadResponse | None
    error: _Failure | None

    @property
    def is_good(self) -> bool:
        return self.response is not None and self.response.status_code < 400


@dataclass(frozen=True, slots=True)
class Answered:
    """The request of an answer line. `key`: see `requests.key_of`."""

    line: int
    custom_id: str | None
    key: bytes
    is_error: bool


def answer_line(custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    response = _Response(status, request_id, msgspec.Raw(_one_line(body)))
    return msgspec.json.encode(_WrittenLine(_new_id(), custom_id, response, None)) + b"\n"


def bad_line(bad: BadLine) -> bytes:
    failure = _Failure(bad.code, bad.message, bad.param, bad.line)
    return msgspec.json.encode(_WrittenLine(_new_id(), bad.custom_id, None, failure)) + b"\n"


class _Body(msgspec.Struct):
    usage: dict[str, object] | None = None


def usage_of(body: bytes) -> dict[str, int]:
    """The tokens of an answer by kind (input, cached, output, reasoning), as OpenAI or Anthropic names them."""
    try:
        usage = msgspec.json.decode(body, type=_Body).usage or {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        usage = {}
    inputs = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    outputs = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    return {
        "input": _count(usage, "prompt_tokens") or _count(usage, "input_tokens"),
        "cached": _count(inputs, "cached_tokens"),
        "output": _count(usage, "completion_tokens") or _count(usage, "output_tokens"),
        "reasoning": _count(outputs, "reasoning_tokens"),
    }


def _count(usage: object, name: str) -> int:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) else 0


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
                    read = msgspec.json.decode(line, type=AnswerLine)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    reason = " ".join(str(error).split())
                    raise BatchError(f"{self.path} line {number}: {reason}; {_ALLOWED}") from None
                source = read.error.line if read.error is not None and read.error.line is not None else 0
                yield Answered(number, read.custom_id, key_of(read.custom_id, source), not read.is_good)

    def drop(self, is_dropped: Callable[[Answered], bool]) -> int:
        """Remove these lines, by a complete new file. Returns their number. Raises: BatchError, OSError."""
        marks = bytearray(is_dropped(answer) for answer in self.answered())
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
            msgspec.json.decode(torn, type=AnswerLine)
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
