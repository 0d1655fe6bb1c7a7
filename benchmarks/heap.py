"""What the C library (glibc) has lent and holds back, in this process.

Does: tell live bytes, which no freed memory hides, and the number of heaps. Does not: know Python's objects, the smallest of
which lie in blocks that live as a whole. Called by benchmarks and tests, on any thread.
"""

from __future__ import annotations

import ctypes
import gc
import os
import tempfile
from pathlib import Path

_LIBRARY = ctypes.CDLL(None)
_NAMES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")

CAN_TELL = hasattr(_LIBRARY, "mallinfo2")
"""Whether this machine's C library is one that tells (glibc 2.33 or later)."""


class _MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _NAMES]


def live_bytes() -> int:
    """Bytes that were allocated and not freed, after what only circles kept alive is gone.

    What threads keep for their next allocation counts as live, unless GLIBC_TUNABLES=glibc.malloc.tcache_count=0.
    """
    gc.collect()
    _LIBRARY.malloc_trim(0)
    tell = _LIBRARY.mallinfo2
    tell.restype = _MallInfo
    info = tell()
    return int(info.uordblks + info.hblkhd)


def num_heaps() -> int:
    """How many heaps the threads of this process have been spread over, those that have ended included."""
    opened = _LIBRARY.fopen
    opened.restype = ctypes.c_void_p
    with tempfile.TemporaryDirectory(prefix="dragoman-heap-") as directory:
        path = Path(directory) / "heaps.xml"
        stream = ctypes.c_void_p(opened(os.fsencode(path), b"w"))
        if not stream:
            raise OSError(f"{path} cannot be written")
        _LIBRARY.malloc_info(0, stream)
        _LIBRARY.fclose(stream)
        return path.read_text(encoding="ascii").count("<heap nr=")
