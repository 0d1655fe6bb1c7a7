"""DJL's format for lists of arrays: bytes as DJL's client writes them, every type, and what is wrong with broken ones."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from dragoman.server.apis.lmi.hooks.ndlist import NAMES, read_ndlist, write_ndlist
from tests.support.tables import table

# One array of 32-bit floats [[1.0, 2.0]], with a name, in the byte order of Java: put together from the format by hand.
NAMED = (
    b"\x00\x00\x00\x01" b"\x00\x04NDAR" b"\x00\x00\x00\x03" b"\x01\x00\x04name" b"\x00\x07default" b"\x00\x07FLOAT32"
    b"\x00\x00\x00\x02" b"\x00\x00\x00\x00\x00\x00\x00\x01" b"\x00\x00\x00\x00\x00\x00\x00\x02"
    b"\x00\x00\x00\x02" b"\x00N\x00C" b">" b"\x00\x00\x00\x08" b"\x3f\x80\x00\x00" b"\x40\x00\x00\x00"
)  # fmt: skip
PLAIN = (
    b"\x00\x00\x00\x01" b"\x00\x04NDAR" b"\x00\x00\x00\x03" b"\x00" b"\x00\x07default" b"\x00\x05INT16"
    b"\x00\x00\x00\x01" b"\x00\x00\x00\x00\x00\x00\x00\x02" b"\x00\x00\x00\x01" b"\x00?" b"<" b"\x00\x00\x00\x04"
    b"\x01\x00\x00\x01"
)  # fmt: skip


def test_bytes_of_either_order_are_read() -> None:
    (array,) = read_ndlist(NAMED)
    assert (array.tolist(), array.dtype.kind, array.dtype.itemsize) == ([[1.0, 2.0]], "f", 4)
    assert [one.tolist() for one in read_ndlist(PLAIN)] == [[1, 256]]


def test_arrays_are_written_in_little_endian() -> None:
    assert write_ndlist(np.array([1, 256], dtype=">i2")) == PLAIN
    assert write_ndlist([np.array([1, 256], dtype="int16")]) == PLAIN


@table("dtype", NAMES, ids=str)
@table("shape", [(), (0,), (3,), (2, 3, 1)])
def test_what_is_written_is_read_again(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape)), dtype="int8").reshape(shape).astype(dtype)
    (read,) = read_ndlist(write_ndlist([array]))
    assert (read.shape, read.tolist()) == (shape, array.tolist())
    assert read.dtype.newbyteorder("=") == dtype


@table(
    ("content", "message"),
    [
        (b"", "it ends after 0 bytes"),
        (PLAIN[:-1], f"it ends after {len(PLAIN) - 1} bytes"),
        (b'{"inputs": 1}', "it ends after 13 bytes"),
        (PLAIN.replace(b"NDAR", b"XDAR"), "of version 3: got 'XDAR' 3"),
        (PLAIN.replace(b"default", b"csr_mat"), "storage must be default, got 'csr_mat'"),
        (PLAIN.replace(b"INT16", b"INT17"), "type must be one of .*, got 'INT17'"),
        (PLAIN.replace(struct.pack(">i", 4) + b"\x01", struct.pack(">i", 3) + b"\x01"), "cannot have 3 bytes"),
    ],
)
def test_broken_content_is_refused_by_what_is_wrong(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_ndlist(content)


def test_types_without_a_form_are_refused() -> None:
    with pytest.raises(ValueError, match="arrays of type <U1 have no form in ndlist"):
        write_ndlist([np.array(["a"])])
