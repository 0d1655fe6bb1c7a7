"""Writes blocks of the cache to the store: decides which and when, and writes copies on a thread of its own.

The keeper works on the engine thread, `flush` when that has ended. The engine thread also calls the writer's `buffer`,
`put`, `touch` and `holds`, and never waits there.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter, time

import numpy as np

from dragoman.engine.rolling.blocks.block_pools import BlockPools
from dragoman.engine.rolling.stats import StoredCounts
from dragoman.engine.rolling.stored_prefixes.store import Bytes, Storage, StoredModel
from dragoman.prefix_store import BlockStore

_SHARE = 0.005  # of the time, for copies between steps
_MOST_CREDIT_S = 0.002
_QUIET_S = 0.004  # of copies in a row while nothing runs: the longest delay of a new request
MOST_BYTES = 64 << 20  # of copies
_REFRESH_S = 5.0  # between two looks for other processes' changes
_PATIENCE_S = 10.0  # for a running write at the end
_FEWEST_BLOCKS = 4  # which always fit, however large they are


@dataclass(frozen=True, slots=True)
class Keep:
    """The time until which a caller wants a block kept: seconds since the epoch. `group`: the caller."""

    until: float | None = None
    group: bytes = b""


NO_KEEP = Keep()


@dataclass(frozen=True, slots=True)
class _Write:
    key: bytes
    content: Bytes
    keep: Keep


@dataclass(frozen=True, slots=True)
class _Touch:
    keys: Sequence[bytes]
    keep: Keep


class Writer:
    """Writes blocks to the store on one thread; holds copies in a bounded pool until then.

    `on_room`: called there when there is room again after `buffer` had none.
    """

    def __init__(
        self,
        store: BlockStore,
        model: StoredModel,
        counts: StoredCounts,
        largest_block: int,
        on_room: Callable[[], object] = lambda: None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._store = store
        self._model = model
        self._counts = counts
        self._on_room = on_room
        self._most_bytes = max(most_bytes, _FEWEST_BLOCKS * largest_block)
        self._changed = threading.Condition()  # guards everything below
        self._jobs: deque[_Write | _Touch] = deque()
        self._held: set[bytes] = set()  # keys of unwritten copies
        self._num_bytes = 0  # of copies
        self._spare: dict[int, list[Bytes]] = {}  # free memory by its size
        self._was_full = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="dragoman-prefix-writer", daemon=True)
        self._thread.start()

    @property
    def has_room(self) -> bool:
        """True if half of the pool is free."""
        return 2 * self._num_bytes <= self._most_bytes

    def holds(self, key: bytes) -> bool:
        return key in self._held

    def buffer(self, num_bytes: int) -> Bytes | None:
        """Memory for a copy, to be passed to `put`; None if the pool is full."""
        with self._changed:
            if self._is_closed or self._num_bytes + num_bytes > self._most_bytes:
                self._was_full = True
                return None
            self._num_bytes += num_bytes
            spare = self._spare.get(num_bytes)
            if spare:
                return spare.pop()
        return np.empty(num_bytes, dtype=np.uint8)

    def put(self, key: bytes, content: Bytes, keep: Keep = NO_KEEP) -> None:
        with self._changed:
            self._jobs.append(_Write(key, content, keep))
            self._held.add(key)
            self._changed.notify_all()

    def touch(self, keys: Sequence[bytes], keep: Keep = NO_KEEP) -> None:
        with self._changed:
            if not self._is_closed:
                self._jobs.append(_Touch(keys, keep))
                self._changed.notify_all()

    def wait_for_room(self, timeout_s: float) -> bool:
        """Return when half of the pool is free; False if that takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self.has_room, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write the queued copies while there is time; drop the rest. False if a write hangs."""
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs, timeout_s)
            self._is_closed = True
            self._jobs.clear()
            self._changed.notify_all()
        self._thread.join(_PATIENCE_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        refresh_s = perf_counter() + _REFRESH_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._is_closed, _REFRESH_S)
                if self._is_closed:
                    return
                job = self._jobs[0] if self._jobs else None  # it stays there until it is done: `close` waits for it
            if perf_counter() >= refresh_s:
                self._store.refresh()
                refresh_s = perf_counter() + _REFRESH_S
            if job is None:
                continue
            try:
                self._do(job)
            except Exception:  # the store's own failures do not raise
                logger.exception("a block could not be written to the prefix store")
            self._forget(job)

    def _do(self, job: _Write | _Touch) -> None:
        if isinstance(job, _Touch):
            self._store.touch(job.keys, job.keep.until, job.keep.group)
            return
        begin_s = perf_counter()
        is_written = self._store.write(
            job.key,
            job.content,
            keep_until=job.keep.until,
            group=job.keep.group,
            label=self._model.name,
            namespace=self._model.namespace,
        )
        self._counts.write_s.add(perf_counter() - begin_s)
        if is_written:
            self._counts.num_written_bytes += job.content.nbytes
        else:
            self._counts.num_refused += 1

    def _forget(self, job: _Write | _Touch) -> None:
        with self._changed:
            if self._jobs:
                self._jobs.popleft()
            if isinstance(job, _Write):
                self._num_bytes -= job.content.nbytes
                self._held.discard(job.key)
                self._spare.setdefault(job.content.nbytes, []).append(job.content)
            tells = self._was_full and self.has_room
            if tells:
                self._was_full = False
            self._changed.notify_all()
        if tells:
            self._on_room()


class Keeper:
    """Tracks the unwritten blocks. `clock`: in seconds.

    Every computed block is written once. Blocks that were found again, or that a caller wants kept: between steps, in at
    most a two-hundredth of the time, as a prefix that every request shares is never evicted. All others while there are
    no requests, so that evictions, which come in bursts, rarely meet an unwritten block. The rest at its eviction, if
    the writer has room.

    Of states, which are large, only the last ones of prompts and answers are written, and those that were found again.
    Blocks that a caller wants in memory only are not written, unless another caller's prompt begins alike.
    """

    def __init__(
        self,
        blocks: BlockPools,
        storage: Storage,
        writer: Writer,
        counts: StoredCounts,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._blocks = blocks
        self._storage = storage
        self._memory = storage.memory
        self._writer = writer
        self._counts = counts
        self._clock = clock
        self._wanted: OrderedDict[tuple[int, bytes], Keep] = OrderedDict()  # in the order of writing
        self._others: OrderedDict[tuple[int, bytes], None] = OrderedDict()
        self._private: set[bytes] = set()  # contents wanted only by callers that do not want them written
        self._credit_s = 0.0
        self._last_s = clock()
        for kind, manager in enumerate(blocks.managers):
            manager.on_cached, manager.on_evicted = partial(self.note_cached, kind), partial(self.save, kind)

    # --- what happens to blocks ---------------------------------------------------------------------------------------

    def note_cached(self, kind: int, digest: bytes) -> None:
        if not self._memory.has_states[kind] and digest not in self._private:
            self._others[kind, digest] = None

    def note_found(self, digests: Sequence[bytes], length: int, keep_s: float | None) -> None:
        """Note that a request starts from a cached prefix of `length` blocks; its caller wants it kept for `keep_s`."""
        if keep_s != 0:
            self._private.difference_update(digests[:length])
            self._want(digests, length, NO_KEEP)

    def note_computed(self, digests: Sequence[bytes], keep_s: float | None) -> None:
        """Note a request's newly computed blocks, before they are cached."""
        managers = self._blocks.managers
        if keep_s == 0:
            cached = [
                digest for digest in digests if any(manager.cached_block(digest) is not None for manager in managers)
            ]
            self._private.update(set(digests).difference(cached))
            self._forget_private()
            return
        for digest in self._private.intersection(digests) if self._private else ():
            self._private.discard(digest)
            for kind, manager in enumerate(managers):
                if manager.cached_block(digest) is not None:
                    self.note_cached(kind, digest)

    def _forget_private(self) -> None:
        """Forget evicted contents before they become too many."""
        managers = self._blocks.managers
        if len(self._private) > 4 * sum(manager.num_blocks for manager in managers):
            self._private &= {digest for manager in managers for digest in manager.cached_contents()}

    def note_prompt(self, digests: Sequence[bytes], length: int, keep_s: float | None, caller: str) -> None:
        """Note a computed prompt with `length` full blocks. `keep_s`: how long to keep them, None = as usual."""
        if keep_s == 0:
            return
        if keep_s is not None:
            self._want(digests, length, Keep(time() + keep_s, caller.encode()))
            return
        self._want_states(digests, length)

    def note_answer(self, digests: Sequence[bytes], length: int, keep_s: float | None) -> None:
        """Note a finished answer with `length` full blocks: the next turn continues there."""
        if keep_s != 0:
            self._want_states(digests, length)

    def save(self, kind: int, block: int, digest: bytes) -> None:
        """Copy a block before its eviction, unless it is written or useless."""
        keep = self._wanted.pop((kind, digest), None)
        self._others.pop((kind, digest), None)
        if keep is None and (self._memory.has_states[kind] or digest in self._private):
            return
        key = self._storage.key(kind, digest)
        if not self._is_known(key) and not self._copy(kind, block, key, keep or NO_KEEP):
            self._counts.num_dropped += 1

    # --- between steps ------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._wanted or self._others) and self._writer.has_room

    def work(self, *, is_idle: bool) -> None:
        now_s = self._clock()
        self._credit_s = min(self._credit_s + _SHARE * (now_s - self._last_s), _MOST_CREDIT_S)
        self._last_s = now_s
        if is_idle:
            self._copy_some(_QUIET_S, is_idle=True)
        elif self._wanted and self._credit_s > 0:
            spent_s = self._copy_some(self._credit_s, is_idle=False)
            self._credit_s = max(self._credit_s - spent_s, -_MOST_CREDIT_S)

    def flush(self, until_s: float) -> None:
        """Write everything that is left, until this time on the clock."""
        while (self._wanted or self._others) and (left_s := until_s - self._clock()) > 0:
            if self._writer.wait_for_room(left_s):
                self._copy_some(left_s, is_idle=True)

    def _copy_some(self, budget_s: float, *, is_idle: bool) -> float:
        """Copy a block, and more while there is time; returns the seconds that it took."""
        begin_s = now_s = self._clock()
        while now_s < begin_s + budget_s and self._writer.has_room and self._copy_next(is_idle=is_idle):
            now_s = self._clock()
        return self._clock() - begin_s

    def _copy_next(self, *, is_idle: bool) -> bool:
        """Copy a block, or skip one that need not be copied; False if nothing is left, or there is no room."""
        if self._wanted:
            (kind, digest), keep = self._wanted.popitem(last=False)
            self._others.pop((kind, digest), None)
        elif self._others and is_idle:
            (kind, digest), keep = self._others.popitem(last=False)[0], NO_KEEP
        else:
            return False
        block = self._blocks.managers[kind].cached_block(digest)
        key = self._storage.key(kind, digest)
        if block is None or self._is_known(key) or self._copy(kind, block, key, keep):
            return True
        self._wanted[kind, digest] = keep
        self._wanted.move_to_end((kind, digest), last=False)
        return False

    # --- inside -------------------------------------------------------------------------------------------------------

    def _want_states(self, digests: Sequence[bytes], length: int) -> None:
        for kind, has_states in enumerate(self._memory.has_states):
            if has_states and length:
                self._want_blocks(kind, digests[length - 1 : length], NO_KEEP)

    def _want(self, digests: Sequence[bytes], length: int, keep: Keep) -> None:
        """Queue the unwritten blocks of a prefix of `length` blocks; the store keeps the others."""
        for kind, manager in enumerate(self._blocks.managers):
            first = 0 if keep.until is not None else manager.first_visible_block(length * self._blocks.block_size)
            if self._memory.has_states[kind]:
                first = max(length - 1, 0)
            self._want_blocks(kind, digests[first:length], keep)

    def _want_blocks(self, kind: int, digests: Sequence[bytes], keep: Keep) -> None:
        known = []
        for digest in digests:
            key = self._storage.key(kind, digest)
            if self._is_known(key):
                known.append(key)
            elif self._blocks.managers[kind].cached_block(digest) is not None and (
                keep.until is not None or (kind, digest) not in self._wanted
            ):
                self._wanted[kind, digest] = keep
        if known:
            self._writer.touch(known, keep)  # after those at the front

    def _is_known(self, key: bytes) -> bool:
        return key in self._storage.store or self._writer.holds(key)

    def _copy(self, kind: int, block: int, key: bytes, keep: Keep) -> bool:
        copy = self._writer.buffer(self._memory.block_bytes[kind])
        if copy is None:
            return False
        np.concatenate(self._memory.block_parts(block, kind), out=copy)
        self._writer.put(key, copy, keep)
        return True


logger = logging.getLogger(__name__)
