"""Gives the memory of a model that is gone back to the machine.

Does: collect what only circles keep alive, and ask the allocator for its empty pages. Does not: know models. Called by
`ModelHost` on a worker thread, after every unload; collecting holds the interpreter for some ten milliseconds.
"""

from __future__ import annotations

import ctypes
import gc
from functools import cache


def give_back_memory() -> None:
    """Return to the machine what nobody uses any more, as far as interpreter and C library can."""
    gc.collect()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> ctypes._NamedFuncPointer | None:
    """glibc's function; None where the C library has no such thing (musl, macOS, Windows)."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
