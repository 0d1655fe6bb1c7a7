"""The memory in which packed weights lie.

Does: hand it out in the order in which a graph asks for it. Does not: know what lies there, or keep it for later starts
(`runtime.kept_weights` does). Called while a graph is built, on the thread that builds it.
"""

from __future__ import annotations

from dragoman.kernels.memory import Memory, of_process

_SLAB_BYTES = 64 << 20  # that small matrices share, so that huge pages are full
_LINE = 64  # bytes of a cache line, at which kernels read


class WeightMemory:
    """Memory of this process alone. As long as this lives, nodes can be made that ask for what was taken."""

    is_filled = False
    """Whether an earlier start has written what is handed out."""

    def __init__(self) -> None:
        self._slab: Memory | None = None
        self._used = 0
        self._taken: list[Memory] = []

    def take(self, num_bytes: int) -> Memory:
        """So much memory, nothing of which is handed out again. Raises: OSError; ValueError if a file does not fit."""
        self._taken.append(self._new(num_bytes))
        return self._taken[-1]

    def _new(self, num_bytes: int) -> Memory:
        size = -(-num_bytes // _LINE) * _LINE
        if size >= _SLAB_BYTES:
            return of_process(size).part(0, num_bytes)
        if self._slab is None or self._used + size > _SLAB_BYTES:
            self._slab, self._used = of_process(_SLAB_BYTES), 0
        begin = self._used
        self._used += size
        return self._slab.part(begin, num_bytes)
