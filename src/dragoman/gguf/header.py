"""Reads the header of a GGUF file: its metadata, and the place of each tensor. Called at a start, on any thread.

Checks every count, length and offset against the file's size first; arrays stay in the file until one is read.
Source: the GGUF specification, versions 2 and 3 (ggml's docs/gguf.md). The `gguf` package's own reader takes seconds
for a vocabulary, and trusts what a file says.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)

# name, values in a block, bytes of a block. Source: ggml's ggml-common.h.
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    30: ("BF16", 1, 2),
    39: ("MXFP4", 32, 17),
}
"""The element types of tensors that are read, by their numbers."""

# Several times what any model has; more would take more memory than the file itself.
_MOST_KEYS, _MOST_TENSORS, _MOST_ITEMS = 10_000, 20_000, 1 << 22
_MOST_NAME, _MOST_TEXT = 1 << 10, 16 << 20
_MOST_DIMENSIONS = 4
_DEFAULT_ALIGNMENT, _MOST_ALIGNMENT = 32, 1 << 20

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """The place of a tensor. `shape`: its last dimension is that of a row. `begin`, `size`: bytes in `path`."""

    path: Path
    name: str
    type_name: str
    shape: tuple[int, ...]
    begin: int
    size: int


@dataclass(frozen=True, slots=True)
class _Items:
    kind: int
    count: int
    begin: int
    end: int


class Metadata(Mapping[str, Any]):
    """Keys and values; arrays are read when they are asked for, as lists. Getters raise ModelError for other types."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self._path, self._values = path, values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        return self._items(key, value) if isinstance(value, _Items) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def is_list(self, key: str) -> bool:
        return isinstance(self._values.get(key), _Items)

    def text(self, key: str, default: str = "") -> str:
        value = self.get(key, default)
        if not isinstance(value, str):
            raise self.error(key, "a text")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.error(key, "an integer of at least 0")
        return value

    def number(self, key: str) -> int | float | None:
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(key, "a finite number")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def listed(self, key: str, kind: type) -> list[Any]:
        """A list of texts (`kind` str) or of numbers; empty if there is none. Raises: ModelError if it is another."""
        if key not in self:
            return []
        value = self[key]
        wanted = str if kind is str else (int, float)
        if not isinstance(value, list) or not all(isinstance(item, wanted) for item in value[:1]):
            raise self.error(key, "a list of texts" if kind is str else "a list of numbers")
        return value

    def error(self, key: str, wanted: str) -> ModelError:
        if key not in self._values:
            return ModelError(f"{self._path} has no {key}, allowed: {wanted}")
        value = self._values[key]
        shown = "a list" if isinstance(value, _Items) else repr(value)
        return ModelError(f"{self._path} {key} is {shown[:80]}, allowed: {wanted}")

    def _items(self, key: str, items: _Items) -> list[Any]:
        try:
            with self._path.open("rb") as file:
                file.seek(items.begin)
                data = file.read(items.end - items.begin)
        except OSError as error:
            raise ModelError(f"{self._path} cannot be read: {error}") from error
        if len(data) < items.end - items.begin:
            raise ModelError(f"{self._path} shrank while it was read")
        if items.kind != _TEXT:
            values: list[Any] = np.frombuffer(data, dtype=f"<{_numpy_code(items.kind)}").tolist()
            return values
        try:
            return _texts(data, items.count)
        except UnicodeDecodeError as error:
            raise ModelError(f"{self._path} {key} holds a text that is not UTF-8: {error}") from error
        except struct.error as error:
            raise ModelError(f"{self._path} has changed while it was read: {key} ends early") from error


def _numpy_code(kind: int) -> str:
    code = _SCALARS[kind]
    return code if code == "?" else np.dtype(code).str[1:]


def _texts(data: bytes, count: int) -> list[str]:
    found, end, length = [], 0, struct.Struct("<Q").unpack_from
    for _ in range(count):
        begin = end + 8
        end = begin + length(data, end)[0]
        found.append(data[begin:end].decode())
    return found


@dataclass(frozen=True, slots=True)
class Header:
    metadata: Metadata
    tensors: tuple[GgufTensor, ...]


def read_header(path: Path) -> Header:
    """Raises: ModelError, in one line, if the file is missing or invalid."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).header()
    except (OSError, ValueError, struct.error, UnicodeDecodeError, OverflowError) as error:
        if isinstance(error, ModelError):
            raise
        why = "it ends within its header" if isinstance(error, struct.error) else str(error)
        raise ModelError(f"{path} is not a readable GGUF file: {why}") from error


class _Reader:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._size = path, data, len(data)
        self._place = 0

    def header(self) -> Header:
        if self._data[:4] != MAGIC:
            raise self._refusal("it does not begin with GGUF")
        self._place = 4
        version = self._scalar("I")
        if version not in VERSIONS:
            big_endian = version & 0xFFFF == 0
            raise self._refusal(
                "its numbers are big-endian, allowed: little-endian"
                if big_endian
                else f"its version is {version}, allowed: {', '.join(map(str, VERSIONS))}"
            )
        num_tensors = self._count("tensors", _MOST_TENSORS, 32)
        num_keys = self._count("metadata keys", _MOST_KEYS, 13)
        values: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._text(_MOST_NAME)
            if key in values:
                raise self._refusal(f"its metadata has {key!r} twice")
            values[key] = self._value(key)
        described = [self._description() for _ in range(num_tensors)]
        return Header(Metadata(self._path, values), self._tensors(described, values))

    def _tensors(
        self, described: list[tuple[str, tuple[int, ...], int, int]], values: Mapping[str, Any]
    ) -> tuple[GgufTensor, ...]:
        alignment = values.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 8 <= alignment <= _MOST_ALIGNMENT or alignment & (alignment - 1):
            raise self._refusal(f"general.alignment is {alignment!r:.40}, allowed: a power of two from 8 on")
        begin = -(-self._place // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in described:
            if name in tensors:
                raise self._refusal(f"it holds tensor {name!r} twice")
            tensors[name] = self._tensor(name, shape, kind, begin + offset)
            if offset % alignment:
                raise self._refusal(f"tensor {name!r} begins at {offset}, allowed: multiples of {alignment}")
        self._refuse_overlaps(sorted(tensors.values(), key=lambda tensor: tensor.begin))
        return tuple(tensors.values())

    def _refuse_overlaps(self, tensors: Sequence[GgufTensor]) -> None:
        for tensor, following in pairwise(tensors):
            if following.begin < tensor.begin + tensor.size:
                raise self._refusal(f"tensors {tensor.name!r} and {following.name!r} overlap at byte {following.begin}")

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, begin: int) -> GgufTensor:
        if kind not in TYPES:
            allowed = ", ".join(type_name for type_name, _, _ in TYPES.values())
            raise self._refusal(f"tensor {name!r} is stored as {_foreign_type(kind)}, allowed: {allowed}")
        type_name, block, block_bytes = TYPES[kind]
        if shape[-1] % block:
            raise self._refusal(
                f"tensor {name!r} has rows of {shape[-1]} values, allowed for {type_name}: whole {block}s"
            )
        size = prod(shape) // block * block_bytes
        if begin + size > self._size:
            raise self._refusal(f"tensor {name!r} ends at byte {begin + size}, the file at {self._size}")
        return GgufTensor(self._path, name, type_name, shape, begin, size)

    def _description(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text(_MOST_NAME)
        num_dimensions = self._scalar("I")
        if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
            raise self._refusal(f"tensor {name!r} has {num_dimensions} dimensions, allowed: 1 to {_MOST_DIMENSIONS}")
        sizes = [self._scalar("Q") for _ in range(num_dimensions)]
        if not all(sizes) or prod(sizes) > self._size * 8:
            raise self._refusal(f"tensor {name!r} has the dimensions {sizes}, which the file has no room for")
        return name, tuple(reversed(sizes)), self._scalar("I"), self._scalar("Q")

    def _value(self, key: str) -> Any:
        kind = self._scalar("I")
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _TEXT:
            return self._text(_MOST_TEXT)
        if kind == _ARRAY:
            return self._array(key)
        raise self._refusal(f"metadata {key!r} has type {kind}, allowed: 0 to 12")

    def _array(self, key: str) -> _Items:
        kind = self._scalar("I")
        if kind != _TEXT and kind not in _SCALARS:
            raise self._refusal(f"metadata {key!r} is an array of type {kind}, allowed: arrays of numbers or texts")
        if kind != _TEXT:
            size = struct.calcsize(f"<{_SCALARS[kind]}")
            count = self._count(f"values of {key!r}", _MOST_ITEMS, size)
            begin = self._place
            self._place += count * size
            return _Items(kind, count, begin, self._place)
        count = self._count(f"values of {key!r}", _MOST_ITEMS, 8)
        begin = place = self._place
        unpack, data = struct.Struct("<Q").unpack_from, self._data
        for _ in range(count):
            place += 8 + unpack(data, place)[0]
        if place > self._size:
            raise self._refusal(f"the texts of {key!r} end beyond the file")
        self._place = place
        return _Items(_TEXT, count, begin, place)

    def _count(self, what: str, most: int, least_bytes: int) -> int:
        """The count of the items that follow, each of at least `least_bytes` bytes; at most `most`."""
        count: int = self._scalar("Q")
        room = max(self._size - self._place, 0) // least_bytes
        if count > most or count > room:
            raise self._refusal(f"it declares {count} {what}, allowed: at most {min(most, room)}")
        return count

    def _text(self, most: int) -> str:
        size = self._scalar("Q")
        if size > most or self._place + size > self._size:
            raise self._refusal(
                f"a text at byte {self._place} has {size} bytes, allowed: at most {most}, within the file"
            )
        self._place += size
        return self._data[self._place - size : self._place].decode()

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._data, self._place)
        self._place += struct.calcsize(f"<{code}")
        return value

    def _refusal(self, why: str) -> ModelError:
        return ModelError(f"{self._path} is not a readable GGUF file: {why}")


def _foreign_type(kind: int) -> str:
    from gguf.constants import GGMLQuantizationType  # only needed here

    try:
        return str(GGMLQuantizationType(kind).name)
    except ValueError:
        return f"type {kind}"
