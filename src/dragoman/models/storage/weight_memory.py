"""The memory in which packed weights lie.

Does: hand it out in the order in which a graph asks for it. Does not: know what lies there, or keep it for later starts
(`runtime.kept_weights` does). Called while a graph is built, on the thread that builds it.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from dragoman.models.sources.base import Array

_SLAB_BYTES = 64 << 20  # that small matrices share, so that huge pages are full
_LINE = 64  # bytes of a cache line, at which kernels read


class Memory(NamedTuple):
    """`data`: u8 [bytes], at a cache line. `is_filled`: an earlier start has written it."""

    data: Array
    is_filled: bool


class WeightMemory:
    """Memory of this process alone, in huge pages where the system has some: fewer misses while weights stream by."""

    is_filled = False
    """Whether an earlier start has written what is handed out."""

    def __init__(self) -> None:
        self._slab: Array = np.empty(0, np.uint8)

    def take(self, num_bytes: int) -> Memory:
        """So much memory, nothing of which is handed out again. Raises: OSError; ValueError if a file does not fit."""
        size = -(-num_bytes // _LINE) * _LINE
        if size > len(self._slab):
            slab = _anonymous(max(size, _SLAB_BYTES))
            if size >= _SLAB_BYTES:
                return Memory(slab[:num_bytes], False)
            self._slab = slab
        data, self._slab = self._slab[:num_bytes], self._slab[size:]
        return Memory(data, False)


def _anonymous(num_bytes: int) -> Array:
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
