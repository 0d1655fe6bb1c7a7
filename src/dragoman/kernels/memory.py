"""Memory that the library of kernels holds, for packed weights, shown to numpy. Used on any thread.

Operations ask for memory by its number, and keep it. The library frees it when neither operations nor arrays use it. As
inputs of a node, weights would cost two microseconds each, at every step.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any, NamedTuple

import numpy as np

from dragoman.kernels.native import Bytes, library


class Memory(NamedTuple):
    """`data`: u8 [bytes], which keeps it. `number`, `offset`: its place for operations. `is_filled`: by an earlier run."""

    data: Bytes
    number: int
    offset: int = 0
    is_filled: bool = False

    def part(self, offset: int, num_bytes: int, *, is_filled: bool = False) -> Memory:
        return Memory(self.data[offset : offset + num_bytes], self.number, self.offset + offset, is_filled)


def of_process(num_bytes: int) -> Memory:
    """Memory of this process, in huge pages where the system has some. Raises: OSError if there is none left."""
    make = library().entry("dragoman_memory_of_process", ctypes.c_int64, ctypes.c_int64)
    return _held(make(num_bytes), num_bytes)


def of_file(descriptor: int, offset: int, num_bytes: int, *, is_written: bool) -> Memory:
    """A part of an open file, from a page's begin on; `is_written`: changes go into the file. Raises: OSError."""
    takes = (ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_bool)
    make = library().entry("dragoman_memory_of_file", ctypes.c_int64, *takes)
    return _held(make(descriptor, offset, num_bytes, is_written), num_bytes)


class _Owner:
    def __init__(self, number: int) -> None:
        self._number = number
        self._let_go = library().entry("dragoman_memory_let_go", None, ctypes.c_int64)

    def __del__(self) -> None:
        self._let_go(self._number)


def _held(number: int, num_bytes: int) -> Memory:
    if not number:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    place = library().entry("dragoman_memory_data", ctypes.c_void_p, ctypes.c_int64)(number)
    view: Any = (ctypes.c_uint8 * num_bytes).from_address(place)
    view.owner = _Owner(number)
    return Memory(np.frombuffer(view, np.uint8), number)
