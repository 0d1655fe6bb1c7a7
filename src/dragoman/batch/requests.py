"""Reads a batch's input: its requests, its invalid lines, and their custom_ids. On one thread at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    told = f"{name} is missing" if shown == "missing" else f"{name} {shown}"
    return BadLine(number, custom_id, "invalid_request", f"line {number}: {told}: must be {allowed}", name)


def _plain(error: Exception) -> str:
    return " ".join(str(error).split())
