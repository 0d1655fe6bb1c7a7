"""Takes a GGUF file apart and puts it together again with other metadata or tensors, well-formed or not.

Does: split a header into its keys and descriptions of tensors; write them. Does not: check anything. Used by the tests of
hostile files and by the fuzz.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

TEXT, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the scalars, by the numbers of their types."""


@dataclass(frozen=True)
class Key:
    """A key of the metadata. `value`: its bytes."""

    name: bytes
    kind: int
    value: bytes


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies."""

    name: bytes
    sizes: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class Parts:
    """A file. `rest`: the tensors' bytes."""

    keys: tuple[Key, ...]
    tensors: tuple[Tensor, ...]
    rest: bytes

    def with_key(self, name: str, kind: int, value: bytes) -> Parts:
        """The same, with this value in the place of the one that is there, or behind all others."""
        key = Key(name.encode(), kind, value)
        keys = [key if one.name == key.name else one for one in self.keys]
        return replace(self, keys=tuple(keys if key in keys else [*keys, key]))

    def without_key(self, name: str) -> Parts:
        """The same without it."""
        return replace(self, keys=tuple(one for one in self.keys if one.name != name.encode()))

    def written(self) -> bytes:
        """The bytes of the file."""
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys))
        keys = b"".join(text(key.name) + struct.pack("<I", key.kind) + key.value for key in self.keys)
        tensors = b"".join(
            text(one.name) + struct.pack(f"<I{len(one.sizes)}QIQ", len(one.sizes), *one.sizes, one.kind, one.offset)
            for one in self.tensors
        )
        header = head + keys + tensors
        return header + bytes(-len(header) % 32) + self.rest


def text(value: bytes | str) -> bytes:
    """A text as the format writes it."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def array(kind: int, count: int, items: bytes) -> bytes:
    """An array's value."""
    return struct.pack("<IQ", kind, count) + items


def texts(values: Sequence[bytes | str]) -> bytes:
    """The value of an array of texts."""
    return array(TEXT, len(values), b"".join(map(text, values)))


def split(data: bytes) -> Parts:
    """The parts of a well-formed file."""
    _, num_tensors, num_keys = struct.unpack_from("<IQQ", data, 4)
    place, keys = 24, []
    for _ in range(num_keys):
        name, place = _text(data, place)
        (kind,) = struct.unpack_from("<I", data, place)
        end = _end(data, place + 4, kind)
        keys.append(Key(name, kind, data[place + 4 : end]))
        place = end
    tensors = []
    for _ in range(num_tensors):
        name, place = _text(data, place)
        (count,) = struct.unpack_from("<I", data, place)
        *sizes, kind, offset = struct.unpack_from(f"<{count}QIQ", data, place + 4)
        tensors.append(Tensor(name, tuple(sizes), kind, offset))
        place += 4 + 8 * count + 12
    return Parts(tuple(keys), tuple(tensors), data[place + -place % 32 :])


def _text(data: bytes, place: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from("<Q", data, place)
    return data[place + 8 : place + 8 + size], place + 8 + size


def _end(data: bytes, place: int, kind: int) -> int:
    if kind == TEXT:
        return _text(data, place)[1]
    if kind != ARRAY:
        return place + SIZES[kind]
    item: int
    count: int
    item, count = struct.unpack_from("<IQ", data, place)
    place += 12
    if item != TEXT:
        return place + SIZES[item] * count
    for _ in range(count):
        place = _text(data, place)[1]
    return place
