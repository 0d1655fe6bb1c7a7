"""Keeps what the runtime holds within bounds, whatever sizes of steps it has computed.

Does: limit the two caches of kernels and the heaps of the C library; give back memory that the runtime has freed. Does not:
choose kernels. The loader limits, before the first compiling; the runner and the host give back, after steps and unloads.

The CPU plugin generates machine code for each size of step and keeps 5,000 kernels, the library below it 1,024 more: up to
a gigabyte. Steps that only decode have few sizes, which come back all the time; their kernels are worth keeping. Others
take some milliseconds to generate, little beside a step with a prompt in it.
"""

from __future__ import annotations

import ctypes
import gc
import os

from dragoman.models.storage.pages import c_function

_NUM_KERNELS = 320  # five for each size of step up to 64, the sizes in which decoding comes back: some 75 MB
_NUM_SHARED_KERNELS = 64  # the library's own cache: it matters only to kernels that the plugin has dropped

_M_ARENA_MAX = -8  # as malloc.h has it
_NUM_ARENAS = 2  # the main thread's, and one for all others


PROPERTIES = {"CPU_RUNTIME_CACHE_CAPACITY": _NUM_KERNELS}
"""For compiling a graph, and for mapping one."""


def bound_shared_cache() -> None:
    """Limit the library's cache, which all graphs of the process share.

    It has no other setting than the environment, which it reads when it makes its first kernel. An operator's
    ONEDNN_PRIMITIVE_CACHE_CAPACITY goes before this older name.
    """
    os.putenv("DNNL_PRIMITIVE_CACHE_CAPACITY", str(_NUM_SHARED_KERNELS))


def bound_arenas() -> None:
    """Limit how many heaps the C library (glibc) spreads over the threads of this process; as early as possible.

    By default each of up to eight threads per core allocates from a heap of its own. The next model cannot use what one
    model leaves free in a thread's heap, as its engine and load run on other threads. So resident memory wanders by tens of
    megabytes. Heaps that there are already remain. An operator's MALLOC_ARENA_MAX goes first, as do GLIBC_TUNABLES that name
    arenas.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "glibc.malloc.arena_" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    limit = c_function("mallopt", ctypes.c_int, ctypes.c_int)
    if limit is not None and c_function("gnu_get_libc_version") is not None:  # others number their options otherwise
        limit(_M_ARENA_MAX, _NUM_ARENAS)


def return_freed_memory() -> None:
    """Give freed memory back to the system, where the C library can (glibc). Takes about a millisecond.

    A step that is larger than all before makes the runtime replace its buffers. What it frees is too small for any later
    one, and the C library keeps it.
    """
    trim = c_function("malloc_trim", ctypes.c_size_t)
    if trim is not None:
        trim(0)


def give_back() -> None:
    """Give the memory of a model that was let go back to the system; for any thread but an event loop's.

    While a reference to its `LoadedModel` or a runner that is not closed exists, its memory stays. Collecting circles of
    objects stops all threads of the interpreter for some 20 milliseconds.
    """
    gc.unfreeze()  # what was there when the server was ready, the first models among it
    gc.collect()
    return_freed_memory()
