"""Loads prefixes from the store while other requests run: decides what to load, and reads it on threads of its own.

`Loads` is for the engine thread only.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Rows
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from time import perf_counter, thread_time

from dragoman.engine.rolling.blocks.block_pools import BlockPools, FreshBlock, Prefix
from dragoman.engine.rolling.sequence import Sequence
from dragoman.engine.rolling.stats import StoredCounts
from dragoman.engine.rolling.stored_prefixes.store import BlockMemory, Storage
from dragoman.prefix_store import BlockStore

Post = Callable[[Callable[[], None]], object]

_FIRST_GUESS = 500e6  # bytes a second; not less than most disks: reads correct it, and nothing else does
_WEIGHT = 0.3  # weight of the newest measurement
_MAX_AGE_S = 120.0  # after which a measurement is forgotten, so that a bad moment does not count for ever
_LEAST_BYTES = 1 << 20  # the smallest read that shows the disk's speed
_LATENCY_S = 0.003  # of passing a read to a thread and back
_NUM_THREADS = 2  # that copy what the disk has fetched
_PIECE_BYTES = 4 << 20  # a read checks after each piece whether any request still waits
_SMALL_PIECE_BYTES = 2 << 20  # beside steps
_MOST_FETCHED = 8  # pieces that wait to be read
_REST = 20.0  # times the core's time for a piece
_FIRST_CORE_S = 1e-9  # of a core's time per byte, before any read beside steps: with new memory
_LOOK_S = 0.01  # between two checks whether steps are still computed


class ReadCosts:
    """The seconds that reads take, learned from earlier ones."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rate = _FIRST_GUESS
        self._measured_s: float | None = None

    def seconds(self, num_bytes: float) -> float:
        if self._measured_s is not None and self._clock() - self._measured_s > _MAX_AGE_S:
            self._rate, self._measured_s = max(self._rate, _FIRST_GUESS), None
        return _LATENCY_S + num_bytes / self._rate

    def observe(self, num_bytes: int, duration_s: float) -> None:
        if num_bytes < _LEAST_BYTES:
            return
        rate = num_bytes / max(duration_s, 1e-6)
        self._rate = rate if self._measured_s is None else self._rate + _WEIGHT * (rate - self._rate)
        self._measured_s = self._clock()


@dataclass(eq=False, slots=True)
class _Load:
    """`digests`: of the prefix that it completes. `waiting`: sequences that wait for its end, or later for admission."""

    table_id: int
    digests: frozenset[bytes]
    reading: Reading
    waiting: list[Sequence] = field(default_factory=list)
    has_ended: bool = False


class Loads:
    """The running loads, and ended ones that hold blocks for waiting requests.

    A load has its own table in the block pools, under an id that no sequence has. So its blocks stay allocated until the
    last byte is read, whatever happens to the request. Then the prefix cache finds them. The load frees its blocks when
    the waiting requests hold them, or when another sequence needs the room. Requests that want the same blocks share one
    load.
    """

    def __init__(
        self,
        blocks: BlockPools,
        storage: Storage,
        reader: Reader,
        counts: StoredCounts,
        post: Post,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._blocks = blocks
        self._storage = storage
        self._reader = reader
        self._counts = counts
        self._post = post
        self._costs = ReadCosts(clock)
        self._ids = count(-1, -1)
        self._loads: list[_Load] = []  # the oldest first
        self._by_waiting: dict[int, _Load] = {}  # by the sequence's id
        self._num_queued_bytes = 0
        self._num_unpriced = 0  # found tokens before their computing time was known

    # --- what could be loaded -----------------------------------------------------------------------------------------

    def match(self, digests: Rows[bytes]) -> int:
        """The length in blocks of the longest prefix that is cached or stored."""
        return self._blocks.match_with(digests, self._storage.holds)

    def begin(self, sequence: Sequence, prefix: Prefix, length: int, token_s: float) -> bool:
        """Load the missing blocks of a sequence's first `length`, after its cached `prefix`; it waits for them.

        `token_s`: seconds to compute a token, 0 = unknown. False if free blocks lack, or if loading does not pay.
        """
        digests = sequence.digests[:length]
        num_tokens = (length - prefix.length) * self._blocks.block_size
        num_bytes = self._num_bytes(digests, length)
        num_waited_for = self._num_queued_bytes + num_bytes
        read_s = self._costs.seconds(num_waited_for) + self._reader.rests_s(num_waited_for)
        if token_s and read_s >= num_tokens * token_s:
            sequence.has_loaded = True
            return False
        table_id = next(self._ids)
        fresh = self._blocks.allocate_visible(table_id, digests, length)
        if fresh is None:
            return False
        keys = [self._storage.key(block.kind, block.digest) for block in fresh]
        reading = Reading(fresh, keys, num_bytes)
        load = _Load(table_id, frozenset(digests), reading)
        reading.on_end = partial(self._post, partial(self._end, load))
        self._loads.append(load)
        self._num_queued_bytes += num_bytes
        self._wait(sequence, load, prefix)
        sequence.has_loaded = True
        self._reader.submit(reading)
        return True

    def join(self, sequence: Sequence, prefix: Prefix) -> bool:
        """Wait for a running load that continues the prefix; False if there is none."""
        if prefix.length >= len(sequence.digests):
            return False
        following = sequence.digests[prefix.length]
        load = next(
            (candidate for candidate in self._loads if not candidate.has_ended and following in candidate.digests), None
        )
        if load is None:
            return False
        sequence.has_joined = True
        load.reading.is_wanted = True
        self._wait(sequence, load, prefix)
        return True

    def _num_bytes(self, digests: Rows[bytes], length: int) -> int:
        total = 0
        for manager, size in zip(self._blocks.managers, self._storage.memory.block_bytes, strict=True):
            visible = digests[manager.first_visible_block(length * self._blocks.block_size) : length]
            total += size * sum([manager.cached_block(digest) is None for digest in visible])
        return total

    def _wait(self, sequence: Sequence, load: _Load, prefix: Prefix) -> None:
        self.leave(sequence)  # an ended one, whose relevant blocks this load holds, too
        if sequence.num_in_memory is None:
            sequence.num_in_memory = prefix.length * self._blocks.block_size
        load.waiting.append(sequence)
        self._by_waiting[sequence.sequence_id] = load

    # --- what becomes of loads ----------------------------------------------------------------------------------------

    @property
    def is_reading(self) -> bool:
        return any(not load.has_ended for load in self._loads)

    def is_loading(self, sequence: Sequence) -> bool:
        load = self._by_waiting.get(sequence.sequence_id)
        return load is not None and not load.has_ended

    def leave(self, sequence: Sequence) -> None:
        """Drop the sequence's load: it was admitted and has the blocks, or is gone."""
        load = self._by_waiting.pop(sequence.sequence_id, None)
        if load is None:
            return
        load.waiting.remove(sequence)
        if load.waiting:
            return
        if load.has_ended:
            self._let_go(load)
        else:
            load.reading.is_wanted = False

    def give_back(self) -> bool:
        """Free the blocks of the youngest load that has ended, to make room; False if there is none."""
        load = next((candidate for candidate in reversed(self._loads) if candidate.has_ended), None)
        if load is None:
            return False
        for sequence in load.waiting:
            del self._by_waiting[sequence.sequence_id]
        self._let_go(load)
        return True

    def note_found(self, num_tokens: int, token_s: float) -> None:
        """Count the loaded tokens that a prompt starts from. `token_s`: seconds to compute one, 0 = unknown."""
        self._counts.num_hits += num_tokens
        self._num_unpriced += num_tokens
        if token_s:
            self._counts.saved_s += self._num_unpriced * token_s
            self._num_unpriced = 0

    def _end(self, load: _Load) -> None:
        """End a load: its complete blocks can be found from now on."""
        reading = load.reading
        whole = reading.blocks[: reading.num_whole]
        for fresh in whole:
            self._blocks.adopt(fresh)
        num_bytes = sum([self._storage.memory.block_bytes[fresh.kind] for fresh in whole])
        self._num_queued_bytes -= reading.num_bytes
        self._counts.num_read_bytes += num_bytes
        self._counts.read_s.add(reading.duration_s)
        self._costs.observe(num_bytes, reading.duration_s)
        load.has_ended = True
        if not load.waiting:
            self._let_go(load)

    def _let_go(self, load: _Load) -> None:
        self._loads.remove(load)
        self._blocks.free(load.table_id)


logger = logging.getLogger(__name__)


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Reading:
    """Blocks to read, in order, and the result. `is_wanted`: a request still waits for them.

    `num_whole`: the number of first blocks that are complete. `duration_s`: of reading, without rests.
    """

    blocks: Rows[FreshBlock]
    keys: Rows[bytes]
    num_bytes: int
    is_wanted: bool = True
    num_whole: int = 0
    duration_s: float = 0.0
    on_end: Callable[[], object] = field(default=lambda: None)


class Reader:
    """Reads blocks into the cache's memory, one reading at a time; `on_end` is called on its thread.

    `has_neighbours`: whether steps are being computed. If not, one thread fetches piece after piece from the disk, and
    two others copy and check them. A read takes a core from the kernels, whose steps wait for their slowest thread. So
    beside steps only one thread reads, and rests after each piece for twenty times the core's time that it took. (A lower
    priority of the thread would not help: it would hold Python's lock while it waits for a core.)
    """

    def __init__(self, store: BlockStore, memory: BlockMemory, has_neighbours: Callable[[], bool]) -> None:
        self._store = store
        self._memory = memory
        self._has_neighbours = has_neighbours
        self._is_closed = threading.Event()
        self._core_s = _FIRST_CORE_S  # of a byte in the last read beside steps
        self._thread = ThreadPoolExecutor(1, "dragoman-prefix-reader")
        self._pool = ThreadPoolExecutor(_NUM_THREADS, "dragoman-prefix-piece")

    def rests_s(self, num_bytes: int) -> float:
        return _REST * num_bytes * self._core_s if self._has_neighbours() else 0.0

    def submit(self, reading: Reading) -> None:
        """Queue blocks to be read; nothing else may use them until `on_end` is called."""
        self._thread.submit(self._run, reading)

    def close(self) -> None:
        """Return when nothing writes to the memory any more."""
        self._is_closed.set()
        self._thread.shutdown(cancel_futures=True)
        self._pool.shutdown()

    def _run(self, reading: Reading) -> None:
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
        return reading.is_wanted and not self._is_closed.is_set()

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
        while self._has_neighbours() and not self._is_closed.is_set() and (left_s := end_s - perf_counter()) > 0:
            self._is_closed.wait(min(left_s, _LOOK_S))


def _take(reading: Reading, reads: deque[tuple[range, Future[int]]]) -> bool:
    """Wait for the oldest of the reads and count its complete blocks; False if one is incomplete."""
    piece, read = reads.popleft()
    num_whole = read.result()
    reading.num_whole += num_whole
    return num_whole == len(piece)
