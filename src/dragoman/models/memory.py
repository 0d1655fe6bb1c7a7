"""Bounds what the runtime holds, caches of kernels, heaps and cores, and gives freed memory back to the system.

The CPU plugin generates code for each size of step: up to a gigabyte. Only the sizes of steps that decode come back.
Called on any thread.
"""

from __future__ import annotations

import ctypes
import gc
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


_NUM_KERNELS = 320  # five for each size of step up to 64, the sizes in which decoding comes back: some 75 MB
_NUM_SHARED_KERNELS = 64  # the library's own cache: it matters only to kernels that the plugin has dropped

_M_ARENA_MAX = -8  # as malloc.h has it
_NUM_ARENAS = 2  # the main thread's, and one for all others

PROPERTIES = {"CPU_RUNTIME_CACHE_CAPACITY": _NUM_KERNELS}
"""For compiling a graph, and for mapping one."""

# By default the plugin ties threads to cores, every model's first one to the same core: alone a twentieth faster, but two
# models crowd it. Decoding beside prompts, on two cores, in parts of a model alone: tied 0.32 + 0.68, not tied 0.50 + 0.56,
# taking turns by steps 0.12 + 0.95. A tower is such a neighbour too.
SHARED = {"ENABLE_CPU_PINNING": False}
"""For graphs that compute beside others of the process, too."""


def bound_shared_cache() -> None:
    """Limit the library's cache; an operator's ONEDNN_PRIMITIVE_CACHE_CAPACITY goes before this older name."""
    os.putenv("DNNL_PRIMITIVE_CACHE_CAPACITY", str(_NUM_SHARED_KERNELS))


def bound_arenas() -> None:
    """Limit the heaps of the C library (glibc), as early as possible: a heap's free memory is of use to its threads alone.

    An operator's MALLOC_ARENA_MAX goes first, as do GLIBC_TUNABLES that name arenas.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "glibc.malloc.arena_" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    limit = c_function("mallopt", ctypes.c_int, ctypes.c_int)
    if limit is not None and c_function("gnu_get_libc_version") is not None:  # others number options differently
        limit(_M_ARENA_MAX, _NUM_ARENAS)


def return_freed_memory() -> None:
    """Give freed memory back to the system, where the C library can (glibc). Takes about a millisecond."""
    trim = c_function("malloc_trim", ctypes.c_size_t)
    if trim is not None:
        trim(0)


def give_back() -> None:
    """Give back the memory of a model that was let go. Stops all threads for some 20 milliseconds: not for event loops."""
    gc.unfreeze()  # objects from before the server was ready, as the first models
    gc.collect()
    return_freed_memory()
