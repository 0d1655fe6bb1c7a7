"""Reads blocks from the store into the cache's memory, on a thread of its own.

Does: one load after the other, in pieces; tell what came of each. Does not: decide what is read, or who waits (`loads`
does). `submit` is called on the engine thread; `close` by whoever ends the engine, before the memory goes.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from dragoman.engine.rolling.blocks.block_pools import FreshBlock
from dragoman.engine.rolling.stored_prefixes.background import give_way
from dragoman.engine.rolling.stored_prefixes.store import BlockMemory, BlockStore

logger = logging.getLogger(__name__)

_PIECE_BYTES = 16 << 20  # between which it looks whether anybody still waits


@dataclass(slots=True)
class Reading:
    """Blocks to read, in this order, and what came of it. `is_wanted`: somebody still waits for them.

    `num_whole`: of the first blocks have their contents. `duration_s`: it took.
    """

    blocks: Sequence[FreshBlock]
    keys: Sequence[bytes]
    num_bytes: int
    is_wanted: bool = True
    num_whole: int = 0
    duration_s: float = 0.0
    on_end: Callable[[], object] = field(default=lambda: None)


class Reader:
    """One thread. `on_end` of a reading is called on it."""

    def __init__(self, store: BlockStore, memory: BlockMemory) -> None:
        self._store = store
        self._memory = memory
        self._changed = threading.Condition()
        self._queue: deque[Reading] = deque()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="dragoman-prefix-reader", daemon=True)
        self._thread.start()

    def submit(self, reading: Reading) -> None:
        """Have blocks read, which nobody else touches until `on_end` was called."""
        with self._changed:
            self._queue.append(reading)
            self._changed.notify_all()

    def close(self) -> None:
        """Return when nothing is written to the memory any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        give_way()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closed)
                if self._is_closed:
                    return
                reading = self._queue.popleft()
            begin_s = perf_counter()
            try:
                self._read(reading)
            except Exception:  # the store's own failures are no exceptions
                logger.exception("blocks could not be read from the prefix store; they are computed")
            reading.duration_s = perf_counter() - begin_s
            reading.on_end()

    def _read(self, reading: Reading) -> None:
        """The blocks up to the first that is not whole: those behind are of no use without it."""
        while reading.num_whole < len(reading.blocks) and reading.is_wanted and not self._is_closed:
            begin = end = reading.num_whole
            num_bytes = 0
            while end < len(reading.blocks) and (end == begin or num_bytes < _PIECE_BYTES):
                num_bytes += self._memory.block_bytes[reading.blocks[end].kind]
                end += 1
            into = [self._memory.block_parts(fresh.block, fresh.kind) for fresh in reading.blocks[begin:end]]
            reading.num_whole += self._store.read(reading.keys[begin:end], into)
            if reading.num_whole < end:
                return
