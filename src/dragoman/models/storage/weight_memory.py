"""The memory of packed weights, handed out in the order in which a graph asks for it."""

from __future__ import annotations

from dragoman.kernels.memory import Memory, of_process

_LEAST_SLAB_BYTES = 64 << 20  # shared by matrices, so that huge pages are full: a slab wastes one of them
_MOST_SLAB_BYTES = 1 << 30
_LINE = 64  # bytes of a cache line, at which kernels read


class WeightMemory:
    """Memory of this process alone. It must live as long as nodes for what was taken are made."""

    is_filled = False
    """True if an earlier start has written what is handed out."""

    def __init__(self) -> None:
        self._slab: Memory | None = None
        self._used = 0
        self._total = 0
        self._taken: list[Memory] = []

    def take(self, num_bytes: int) -> Memory:
        """Memory of `num_bytes`, never handed out again. Raises: OSError; ValueError if a file does not fit."""
        self._taken.append(self._new(num_bytes))
        return self._taken[-1]

    def _new(self, num_bytes: int) -> Memory:
        size = -(-num_bytes // _LINE) * _LINE
        if size >= _LEAST_SLAB_BYTES:
            return of_process(size).part(0, num_bytes)
        if self._slab is None or self._used + size > len(self._slab.data):
            # as much again as there is: unwritten memory takes none, but counts where memory is limited
            slab_bytes = min(max(self._total, _LEAST_SLAB_BYTES), _MOST_SLAB_BYTES)
            self._slab, self._used = of_process(slab_bytes), 0
        begin = self._used
        self._used += size
        self._total += size
        return self._slab.part(begin, num_bytes)
