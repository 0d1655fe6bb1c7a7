"""Puts the parts of this package together for one engine. Used by the scheduler, on the engine thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter

from dragoman.engine.rolling.blocks.block_pools import BlockPools
from dragoman.engine.rolling.stats import StoredCounts
from dragoman.engine.rolling.stored_prefixes.loading import Loads, Post, Reader
from dragoman.engine.rolling.stored_prefixes.store import Storage
from dragoman.engine.rolling.stored_prefixes.writing import Keeper, Writer

logger = logging.getLogger(__name__)

FLUSH_S = 5.0  # at the end, for unwritten blocks; most are written by then, see `writing`


class StoredPrefixes:
    """Owns threads and the store: `close` ends them. `has_neighbours`: steps are being computed; called on any thread."""

    def __init__(
        self,
        storage: Storage,
        blocks: BlockPools,
        post: Post,
        has_neighbours: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.counts = StoredCounts()
        store, memory = storage.store, storage.memory
        self._store = store
        self._clock = clock
        on_room = partial(post, lambda: None)
        self._writer = Writer(store, storage.model, self.counts, max(memory.block_bytes), on_room)
        self._reader = Reader(store, memory, has_neighbours)
        self.keeper = Keeper(blocks, storage, self._writer, self.counts, clock)
        self.loads = Loads(blocks, storage, self._reader, self.counts, post, clock)

    def close(self, *, is_whole: bool = True) -> None:
        """Write the remaining blocks while there is time, and end. `is_whole`: the cache's content can be trusted."""
        self._reader.close()
        end_s = self._clock() + FLUSH_S
        if is_whole:
            self.keeper.flush(end_s)
        if self._writer.close(max(end_s - self._clock(), 0.0) if is_whole else 0.0):
            self._store.close()
        else:
            logger.warning("the prefix store's disk stands still: what was being written there is lost")
