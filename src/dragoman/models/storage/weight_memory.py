"""The memory in which packed weights lie.

Does: hand it out in the order in which a graph asks for it. Does not: know what lies there, or keep it for later starts
(`runtime.kept_weights` does). Called while a graph is built, on the thread that builds it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dragoman.kernels import memory
from dragoman.models.sources.base import Array

_SLAB_BYTES = 64 << 20  # that small matrices share, so that huge pages are full
_LINE = 64  # bytes of a cache line, at which kernels read


class Memory(NamedTuple):
    """`data`: u8 [bytes], at a cache line. `number`, `offset`: where operations find it. `is_filled`: an earlier start wrote it."""

    data: Array
    number: int
    offset: int = 0
    is_filled: bool = False


class WeightMemory:
    """Memory of this process alone."""

    is_filled = False
    """Whether an earlier start has written what is handed out."""

    def __init__(self) -> None:
        self._slab: memory.HeldMemory | None = None
        self._used = 0

    def take(self, num_bytes: int) -> Memory:
        """So much memory, nothing of which is handed out again. Raises: OSError; ValueError if a file does not fit."""
        size = -(-num_bytes // _LINE) * _LINE
        if size >= _SLAB_BYTES:
            whole = memory.of_process(size)
            return Memory(whole.data[:num_bytes], whole.number)
        if self._slab is None or self._used + size > _SLAB_BYTES:
            self._slab, self._used = memory.of_process(_SLAB_BYTES), 0
        begin = self._used
        self._used += size
        return Memory(self._slab.data[begin : begin + num_bytes], self._slab.number, begin)

    def put(self, values: Array) -> Memory:
        """A copy of values in such memory. Raises: OSError."""
        values = np.ascontiguousarray(values)
        place = WeightMemory.take(self, values.nbytes)
        place.data.view(values.dtype)[:] = values.reshape(-1)
        return place
