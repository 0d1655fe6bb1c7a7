"""Reads blocks from the store into the cache's memory, on a thread of its own.

Does: one load after the other, in pieces; tell what came of each. Does not: decide what is read, or who waits (`loads`
does). `submit` is called on the engine thread; `close` by whoever ends the engine, before the memory goes.

A read takes a core from the kernels, whose steps wait for the slowest of their threads: so beside steps it rests twelve
times as long as each of its pieces took. (A lower priority of the thread would not do: it would hold Python's lock while
it waits for a core.)
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from dragoman.engine.rolling.blocks.block_pools import FreshBlock
from dragoman.engine.rolling.stored_prefixes.store import BlockMemory, BlockStore

logger = logging.getLogger(__name__)

_PIECE_BYTES = 16 << 20  # between which it looks whether anybody still waits
_SMALL_PIECE_BYTES = 2 << 20  # beside steps
_REST = 12.0  # times what a piece took
_LOOK_S = 0.01  # after which it sees that nobody computes any more
_MOST_REST_S = 0.2  # a piece that took so long has waited for the disk


@dataclass(slots=True)
class Reading:
    """Blocks to read, in this order, and what came of it. `is_wanted`: somebody still waits for them.

    `num_whole`: of the first blocks have their contents. `duration_s`: it took, without rests.
    """

    blocks: Sequence[FreshBlock]
    keys: Sequence[bytes]
    num_bytes: int
    is_wanted: bool = True
    num_whole: int = 0
    duration_s: float = 0.0
    on_end: Callable[[], object] = field(default=lambda: None)


class Reader:
    """One thread. `on_end` of a reading is called on it. `has_neighbours`: whether steps are computed meanwhile."""

    def __init__(self, store: BlockStore, memory: BlockMemory, has_neighbours: Callable[[], bool]) -> None:
        self._store = store
        self._memory = memory
        self._has_neighbours = has_neighbours
        self._changed = threading.Condition()
        self._queue: deque[Reading] = deque()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="dragoman-prefix-reader", daemon=True)
        self._thread.start()

    @property
    def slowness(self) -> float:
        """How many times longer a read takes than alone."""
        return 1.0 + _REST if self._has_neighbours() else 1.0

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
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closed)
                if self._is_closed:
                    return
                reading = self._queue.popleft()
            try:
                self._read(reading)
            except Exception:  # the store's own failures are no exceptions
                logger.exception("blocks could not be read from the prefix store; they are computed")
            reading.on_end()

    def _read(self, reading: Reading) -> None:
        """The blocks up to the first that is not whole: those behind are of no use without it."""
        while reading.num_whole < len(reading.blocks) and reading.is_wanted and not self._is_closed:
            begin_s, begin, num_bytes = perf_counter(), reading.num_whole, 0
            end = begin
            most_bytes = _SMALL_PIECE_BYTES if self._has_neighbours() else _PIECE_BYTES
            while end < len(reading.blocks) and (end == begin or num_bytes < most_bytes):
                num_bytes += self._memory.block_bytes[reading.blocks[end].kind]
                end += 1
            into = [self._memory.block_parts(fresh.block, fresh.kind) for fresh in reading.blocks[begin:end]]
            reading.num_whole += self._store.read(reading.keys[begin:end], into)
            piece_s = perf_counter() - begin_s
            reading.duration_s += piece_s
            if reading.num_whole < end:
                return
            if end < len(reading.blocks):
                self._rest(min(_REST * piece_s, _MOST_REST_S))

    def _rest(self, seconds: float) -> None:
        """Leave the cores to steps for so long, as far as there are any."""
        end_s = perf_counter() + seconds
        with self._changed:
            while self._has_neighbours() and not self._is_closed and (left_s := end_s - perf_counter()) > 0:
                self._changed.wait(min(left_s, _LOOK_S))
