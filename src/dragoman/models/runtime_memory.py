"""Keeps what the runtime holds within bounds, whatever sizes of steps it has computed.

Does: limit the two caches of kernels; give memory back that the runtime has freed. Does not: choose kernels, or know what a
step is. The caches are limited by the loader, before the first compiling; memory is given back by the runner, on its thread.

The CPU plugin generates machine code for each size of step, a megabyte for some five kernels, and keeps it for the next
step of that size. By default it keeps 5,000 kernels, and the library below it 1,024 more: a server whose prompts have many
lengths grows by up to a gigabyte. Steps that only decode have few sizes, which come back all the time; those are worth
keeping. Generating a step's kernels again takes some milliseconds, little beside a step with a prompt in it.
"""

from __future__ import annotations

import ctypes
import os

_NUM_KERNELS = 320  # five for each size of step up to 64, the sizes in which decoding comes back: some 75 MB
_NUM_SHARED_KERNELS = 64  # the library's own cache: it matters only to kernels that the plugin has dropped

PROPERTIES = {"CPU_RUNTIME_CACHE_CAPACITY": _NUM_KERNELS}
"""For compiling a graph, and for mapping one."""


def bound_shared_cache() -> None:
    """Limit the library's cache, which all graphs of the process share.

    It has no other setting than the environment, which it reads when it makes its first kernel. An operator's
    ONEDNN_PRIMITIVE_CACHE_CAPACITY goes before this older name.
    """
    os.putenv("DNNL_PRIMITIVE_CACHE_CAPACITY", str(_NUM_SHARED_KERNELS))


def return_freed_memory() -> None:
    """Give freed memory back to the system, where the C library can (glibc). Takes about a millisecond.

    A step that is larger than all before makes the runtime replace its buffers. What it frees is too small for any later
    one, and the C library keeps it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
