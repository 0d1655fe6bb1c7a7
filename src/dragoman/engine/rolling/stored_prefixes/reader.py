"""Reads blocks from the store into the cache's memory, on its own threads, one load after the other.

While no steps are computed, one thread fetches piece after piece from the disk, and two others copy and check them. A
read takes a core from the kernels, whose steps wait for their slowest thread. So beside steps only one thread reads,
and rests after each piece for twenty times the core's time that it took. (A lower priority of the thread would not
help: it would hold Python's lock while it waits for a core.)
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from time import perf_counter, thread_time

from dragoman.engine.rolling.blocks.block_pools import FreshBlock
from dragoman.engine.rolling.stored_prefixes.store import BlockMemory
from dragoman.prefix_store import BlockStore

logger = logging.getLogger(__name__)

_NUM_THREADS = 2  # that copy what the disk has fetched
_PIECE_BYTES = 4 << 20  # a read checks after each piece whether any request still waits
_SMALL_PIECE_BYTES = 2 << 20  # beside steps
_MOST_FETCHED = 8  # pieces that wait to be read
_REST = 20.0  # times the core's time for a piece
_FIRST_CORE_S = 1e-9  # of a core's time per byte, before any read beside steps: with new memory
_LOOK_S = 0.01  # between two checks whether steps are still computed


@dataclass(slots=True)
class Reading:
    """Blocks to read, in order, and the result. `is_wanted`: a request still waits for them.

    `num_whole`: the number of first blocks that are complete. `duration_s`: of reading, without rests.
    """

    blocks: Sequence[FreshBlock]
    keys: Sequence[bytes]
    num_bytes: int
    is_wanted: bool = True
    num_whole: int = 0
    duration_s: float = 0.0
    on_end: Callable[[], object] = field(default=lambda: None)


class Reader:
    """Runs one reading at a time; `on_end` is called on its thread. `has_neighbours`: whether steps are being computed."""

    def __init__(self, store: BlockStore, memory: BlockMemory, has_neighbours: Callable[[], bool]) -> None:
        self._store = store
        self._memory = memory
        self._has_neighbours = has_neighbours
        self._changed = threading.Condition()
        self._queue: deque[Reading] = deque()
        self._is_closed = False
        self._core_s = _FIRST_CORE_S  # of a byte in the last read beside steps
        self._pool = ThreadPoolExecutor(_NUM_THREADS, "dragoman-prefix-piece")
        self._thread = threading.Thread(target=self._run, name="dragoman-prefix-reader", daemon=True)
        self._thread.start()

    def rests_s(self, num_bytes: int) -> float:
        return _REST * num_bytes * self._core_s if self._has_neighbours() else 0.0

    def submit(self, reading: Reading) -> None:
        """Queue blocks to be read; nothing else may use them until `on_end` is called."""
        with self._changed:
            self._queue.append(reading)
            self._changed.notify_all()

    def close(self) -> None:
        """Return when nothing writes to the memory any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        self._pool.shutdown()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closed)
                if self._is_closed:
                    return
                reading = self._queue.popleft()
            try:
                self._read(reading)
            except Exception:  # the store's own failures do not raise
                logger.exception("blocks could not be read from the prefix store; they are computed")
            reading.on_end()

    def _read(self, reading: Reading) -> None:
        """Read the blocks up to the first incomplete one: later ones are useless without it."""
        is_whole = True
        while is_whole and reading.num_whole < len(reading.blocks) and self._is_wanted(reading):
            begin_s, core_s = perf_counter(), 0.0
            if self._has_neighbours():
                is_whole, core_s = self._read_beside(reading)
            else:
                is_whole = self._read_alone(reading)
            reading.duration_s += perf_counter() - begin_s
            if reading.num_whole < len(reading.blocks):
                self._rest(_REST * core_s)

    def _is_wanted(self, reading: Reading) -> bool:
        return reading.is_wanted and not self._is_closed

    def _read_beside(self, reading: Reading) -> tuple[bool, float]:
        """Read a piece; (False if a block of it is incomplete, the seconds of a core's time)."""
        piece = self._pieces(reading, _SMALL_PIECE_BYTES)[0]
        begin_s = thread_time()
        num_whole = self._read_piece(reading, piece)
        core_s = thread_time() - begin_s
        reading.num_whole += num_whole
        if num_whole == len(piece):
            self._core_s = core_s / max(self._num_bytes(reading, piece), 1)
        return num_whole == len(piece), core_s

    def _read_alone(self, reading: Reading) -> bool:
        """Read pieces until the engine computes; False if a block is incomplete."""
        reads: deque[tuple[range, Future[int]]] = deque()
        try:
            for piece in self._pieces(reading, _PIECE_BYTES):
                self._store.fetch(reading.keys[piece.start : piece.stop])
                reads.append((piece, self._pool.submit(self._read_piece, reading, piece)))
                if len(reads) > _MOST_FETCHED and not _take(reading, reads):
                    return False
                if not self._is_wanted(reading) or self._has_neighbours():
                    break
            while reads:
                if not _take(reading, reads):
                    return False
            return True
        finally:
            wait([read for _, read in reads])  # these write to the cache's memory

    def _pieces(self, reading: Reading, most_bytes: int) -> list[range]:
        pieces, begin, num_bytes = [], reading.num_whole, 0
        for position in range(begin, len(reading.blocks)):
            num_bytes += self._memory.block_bytes[reading.blocks[position].kind]
            if num_bytes >= most_bytes or position + 1 == len(reading.blocks):
                pieces.append(range(begin, position + 1))
                begin, num_bytes = position + 1, 0
        return pieces

    def _num_bytes(self, reading: Reading, piece: range) -> int:
        return sum(self._memory.block_bytes[reading.blocks[position].kind] for position in piece)

    def _read_piece(self, reading: Reading, piece: range) -> int:
        """The number of its first blocks that are complete."""
        blocks = reading.blocks[piece.start : piece.stop]
        into = [self._memory.block_parts(fresh.block, fresh.kind) for fresh in blocks]
        return self._store.read(reading.keys[piece.start : piece.stop], into)

    def _rest(self, seconds: float) -> None:
        end_s = perf_counter() + seconds
        with self._changed:
            while self._has_neighbours() and not self._is_closed and (left_s := end_s - perf_counter()) > 0:
                self._changed.wait(min(left_s, _LOOK_S))


def _take(reading: Reading, reads: deque[tuple[range, Future[int]]]) -> bool:
    """Wait for the oldest of the reads and count its complete blocks; False if one is incomplete."""
    piece, read = reads.popleft()
    num_whole = read.result()
    reading.num_whole += num_whole
    return num_whole == len(piece)
