"""Spreads work on the rows of many matrices over all cores. Used while a graph is built, on the thread that builds it.

numpy lets go of the interpreter's lock while it computes, so threads do. Parts of all matrices share one queue:
waiting at the end of each matrix would cost a third of the time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from typing import Any, Self, TypeVar

T = TypeVar("T")
Work = Callable[[slice], T]

PART_SIZE = 524_288  # values: smaller parts wait for each other at the interpreter's lock, larger ones for memory
_MOST_WAITING = 128  # parts, of joined or turned matrices copies: 128 MB of bfloat16


class RowParts:
    """A queue of parts, and the threads that empty it. A context manager; leaving it drops what has not begun.

    `progress` gets the number of values that are done, on the thread that submits.
    """

    def __init__(self, num_workers: int | None = None, progress: Callable[[int], None] | None = None) -> None:
        self._num_workers = num_workers or os.cpu_count() or 1
        self._progress = progress
        self._num_done = 0
        self._lock = threading.Lock()  # guards `_num_done`
        self._pool = ThreadPoolExecutor(self._num_workers, thread_name_prefix="weights")
        self._pending: list[Future[Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def submit(self, shape: tuple[int, ...], work: Work[None], unit: int = 1, part_size: int = PART_SIZE) -> None:
        """Have `work` called with every part of the rows, before `finish` returns. Parts begin at multiples of `unit`.

        Waits while many parts wait, since their matrices live as long. Raises: what a work did.
        """
        if len(self._pending) > _MOST_WAITING:
            self._pending[-_MOST_WAITING].result()
        columns = prod(shape[1:])
        parts = self._cut(shape, unit, part_size)
        self._pending += [self._pool.submit(self._do, work, part, columns) for part in parts]
        self._tell()

    def run(self, shape: tuple[int, ...], work: Work[T]) -> list[T]:
        """The result of `work` for every part, in the order of the rows. Raises: what `work` raises."""
        return list(self._pool.map(work, self._cut(shape)))

    def finish(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Wait for what was submitted; `progress` gets the numbers of parts done, and of all. Raises: what a work did."""
        for done, future in enumerate(self._pending, 1):
            future.result()
            if progress is not None:
                progress(done, len(self._pending))
            self._tell()
        self._pending.clear()

    def _do(self, work: Work[None], part: slice, num_columns: int) -> None:
        work(part)
        with self._lock:
            self._num_done += (part.stop - part.start) * num_columns

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._num_done)

    def _cut(self, shape: tuple[int, ...], unit: int = 1, part_size: int = PART_SIZE) -> list[slice]:
        rows, columns = shape[0], max(prod(shape[1:]), 1)
        size = rows * columns
        num_parts = 1
        if size > PART_SIZE // 2:
            num_parts = max(round(size / part_size / self._num_workers), 1) * self._num_workers
        step = max(-(-rows // num_parts // unit) * unit, unit)
        return [slice(begin, min(begin + step, rows)) for begin in range(0, rows, step)]
