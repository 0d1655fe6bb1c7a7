"""Gives pages of memory back to the system, where that has such calls. Called on any thread."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_DONT_NEED: int | None = getattr(mmap, "MADV_DONTNEED", None) if sys.platform == "linux" else None
_PIECE_BYTES = 32 << 20  # threads that map or free memory meanwhile wait for a piece, three milliseconds


def is_mapped(values: Array) -> bool:
    base: Any = values
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


def forget_pages(values: Array) -> None:
    """Give back the pages of an array that is not read again: freeing them would hold the interpreter 80 ms per GiB."""
    advise = c_function("madvise", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if advise is None or _DONT_NEED is None:
        return
    begin: int = -(-values.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    end: int = (values.ctypes.data + values.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    for start in range(begin, end, _PIECE_BYTES):
        advise(start, min(_PIECE_BYTES, end - start), _DONT_NEED)


@cache
def c_function(name: str, *argument_types: Any) -> Any:
    """A function of the C library, which runs without the interpreter's lock; None if there is no such function here."""
    function = getattr(ctypes.CDLL(None), name, None) if os.name == "posix" else None
    if function is not None:
        function.argtypes = argument_types
    return function
