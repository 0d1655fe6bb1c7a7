"""Writes blocks to the store on its own thread; holds copies in a bounded pool until then.

The engine thread calls `buffer`, `put`, `touch` and `holds`, and never waits there.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from dragoman.engine.rolling.stats import StoredCounts
from dragoman.engine.rolling.stored_prefixes.store import Bytes, StoredModel
from dragoman.prefix_store import BlockStore

logger = logging.getLogger(__name__)

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
    """Runs one thread. `on_room`: called there when there is room again after `buffer` had none."""

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
