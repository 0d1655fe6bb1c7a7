"""Loads prefixes from the store while other requests run. On the engine thread only.

A load has its own table in the block pools, under an id that no sequence has. So its blocks stay allocated until the
last byte is read, whatever happens to the request. Then the prefix cache finds them. The load frees its blocks when the
waiting requests hold them, or when another sequence needs the room. Requests that want the same blocks share one load.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from time import perf_counter

from dragoman.engine.rolling.blocks.block_pools import BlockPools, Prefix
from dragoman.engine.rolling.sequence import Sequence
from dragoman.engine.rolling.stats import StoredCounts
from dragoman.engine.rolling.stored_prefixes.reader import Reader, Reading
from dragoman.engine.rolling.stored_prefixes.store import Storage

Post = Callable[[Callable[[], None]], object]

_FIRST_GUESS = 500e6  # bytes a second; not less than most disks: reads correct it, and nothing else does
_WEIGHT = 0.3  # weight of the newest measurement
_MAX_AGE_S = 120.0  # after which a measurement is forgotten, so that a bad moment does not count for ever
_LEAST_BYTES = 1 << 20  # the smallest read that shows the disk's speed
_LATENCY_S = 0.003  # of passing a read to a thread and back


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
        keys = [self._storage.key(one.kind, one.digest) for one in fresh]
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
        load = next((one for one in self._loads if not one.has_ended and following in one.digests), None)
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
        load = next((one for one in reversed(self._loads) if one.has_ended), None)
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
