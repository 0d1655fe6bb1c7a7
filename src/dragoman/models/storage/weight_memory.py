"""The memory in which packed weights lie, and files of it that later starts map instead of packing again.

Does: hand out memory in the order in which a graph asks for it; write such memory into a file, and check what was written.
Does not: know what lies there, or name files (the loader does). Called while a graph is built, on the thread that builds it.

A graph asks for the same memory in the same order at every start, so a file needs no names: sizes tell that it fits.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from dragoman.models.runtime.seal import SealedBytes
from dragoman.models.sources.base import Array
from dragoman.ownership import open_own

logger = logging.getLogger(__name__)

_SLAB_BYTES = 64 << 20  # that small matrices share, so that huge pages are full
_LINE = 64  # bytes of a cache line, at which kernels read
_COUNT_BYTES = 8


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


class WrittenWeights(WeightMemory):
    """Memory that is a file's, which `finish` makes whole. What the disk has no room for is memory of this process."""

    def __init__(self, path: Path) -> None:
        """Makes the file. Raises: OSError."""
        super().__init__()
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._places: list[tuple[int, int]] | None = []
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def take(self, num_bytes: int) -> Memory:
        """See `WeightMemory`."""
        if self._places is None:
            return super().take(num_bytes)
        begin = -(-self._end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        try:
            # Asked for now: memory of a file that has no room on the disk ends the process when it is written.
            os.posix_fallocate(self._descriptor, begin, num_bytes)
            mapped = mmap.mmap(self._descriptor, num_bytes, offset=begin)
        except OSError as error:
            logger.warning("the packed weights cannot be kept in %s: %s", self._path.parent.parent, error.strerror)
            self._places = None
            return super().take(num_bytes)
        self._places.append((begin, num_bytes))
        self._end = begin + num_bytes
        return Memory(np.frombuffer(mapped, np.uint8), False)

    def finish(self) -> bool:
        """Write where everything lies behind it; False if some of it is not in the file. Raises: OSError."""
        if self._places is None:
            return False
        index = json.dumps(self._places).encode()
        os.pwrite(self._descriptor, index + len(index).to_bytes(_COUNT_BYTES, "little"), self._end)
        return True


class KeptWeights(WeightMemory):
    """Memory that an earlier start has written into a sealed file, checked on threads meanwhile. A context manager.

    Mapped, not read: it is the system's cache of the file, which servers of one machine share.
    """

    is_filled = True

    def __init__(self, path: Path) -> None:
        """Raises: OSError, also if somebody else can have written the file; ValueError if it is none of these."""
        super().__init__()
        with open_own(path) as file:  # mapped for copying: the runtime takes no read-only memory; nothing writes
            mapped = np.memmap(file, dtype=np.uint8, mode="c")
        self._sealed = SealedBytes(np.asarray(mapped))
        contents = self._sealed.contents
        size = int.from_bytes(contents[-_COUNT_BYTES:].tobytes(), "little")
        index: Any = json.loads(contents[-size - _COUNT_BYTES : -_COUNT_BYTES].tobytes())
        self._places = iter([contents[begin : begin + count] for begin, count in index])

    def __enter__(self) -> Self:
        self._sealed.__enter__()
        self._sealed.begin_check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._sealed.__exit__(kind, error, traceback)

    def take(self, num_bytes: int) -> Memory:
        """See `WeightMemory`."""
        data = next(self._places, None)
        if data is None or len(data) != num_bytes:
            raise ValueError("it holds other matrices")
        return Memory(data, True)

    def finish_check(self, progress: Callable[[float], None]) -> None:
        """Return once every byte has been checked. Raises: ValueError if one is not as it was written."""
        self._sealed.finish_check(progress)


def _anonymous(num_bytes: int) -> Array:
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
