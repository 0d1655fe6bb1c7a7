"""Lists of arrays in DJL's own binary format, `tensor/ndlist`, without sparse arrays; names of arrays are skipped.

Layout, integers big-endian, texts with a 16-bit length before them. Source: DJL's NDArray serialisation, version 3.
  i32 number of arrays, then for each:
  - text "NDAR" · i32 version · u8 has a name [text name] · text sparse format · text type;
  - i32 n, n x i64 shape · i32 m, m x u16 layout;
  - u8 byte order ("<" or ">") · i32 length · the numbers, row by row
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MAGIC = "NDAR"
VERSION = 3
DENSE = "default"
UNKNOWN_LAYOUT = ord("?")

# DJL's name -> numpy's; what is missing in here (strings, bfloat16, complex numbers) is refused by name
TYPES = {
    name.upper(): np.dtype(name)
    for name in (
        "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
    )
} | {"BOOLEAN": np.dtype("bool")}  # fmt: skip
NAMES = {dtype: name for name, dtype in TYPES.items() if name != "BOOL"}


def read_ndlist(content: bytes) -> list[Array]:
    """Raises: ValueError saying what is wrong with the content."""
    reader = _Reader(content)
    try:
        arrays = [_read_array(reader) for _ in range(reader.number(">i"))]
    except struct.error as error:
        raise ValueError(f"the content is not a list of arrays (ndlist): it ends after {len(content)} bytes") from error
    return arrays


def write_ndlist(arrays: Array | Sequence[Array]) -> bytes:
    """Raises: ValueError for types that the format does not have."""
    several = [arrays] if isinstance(arrays, np.ndarray) else [np.asarray(array) for array in arrays]
    return struct.pack(">i", len(several)) + b"".join(_array_bytes(array) for array in several)


class _Reader:
    """Reads values one after the other. Raises: struct.error at the end of the content."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return int(value)

    def text(self) -> str:
        return self.take(self.number(">H")).decode("utf-8", "replace")

    def take(self, length: int) -> bytes:
        piece = self._content[self._position : self._position + max(0, length)]
        if len(piece) != length:
            raise struct.error
        self._position += length
        return piece


def _read_array(reader: _Reader) -> Array:
    magic, version = reader.text(), reader.number(">i")
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError(f"the content is not a list of arrays (ndlist) of version {VERSION}: got {magic!r} {version}")
    if reader.number("B"):
        reader.text()
    storage, type_name = reader.text(), reader.text().upper()
    if storage.lower() != DENSE:
        raise ValueError(f"an array's storage must be {DENSE}, got {storage!r}")
    if type_name not in TYPES:
        raise ValueError(f"an array's type must be one of {', '.join(TYPES)}, got {type_name!r}")
    shape = [reader.number(">q") for _ in range(reader.number(">i"))]
    reader.take(2 * reader.number(">i"))
    order, length = chr(reader.number("B")), reader.number(">i")
    dtype = TYPES[type_name].newbyteorder("<" if order == "<" else ">")
    if length != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"an array of shape {shape} and type {type_name} cannot have {length} bytes")
    return np.frombuffer(reader.take(length), dtype).reshape(shape)


def _array_bytes(array: Array) -> bytes:
    name = NAMES.get(array.dtype.newbyteorder("="))
    if name is None:
        raise ValueError(
            f"arrays of type {array.dtype} have no form in ndlist: convert them to one of {', '.join(TYPES)}"
        )
    numbers = array.astype(array.dtype.newbyteorder("<")).tobytes("C")
    num_axes = struct.pack(">i", array.ndim)
    return b"".join(
        (
            *(_text(MAGIC), struct.pack(">iB", VERSION, 0), _text(DENSE), _text(name)),
            *(num_axes, struct.pack(f">{array.ndim}q", *array.shape)),
            *(num_axes, struct.pack(f">{array.ndim}H", *[UNKNOWN_LAYOUT] * array.ndim)),
            *(b"<", struct.pack(">i", len(numbers)), numbers),
        )
    )


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded
