"""Chooses the cached block without a holder to evict. Called by the block manager, on the engine thread.

Blocks used once go first, so one-off prompts do not drive out shared ones; then that with the longest interval between
uses. So if prefixes recur in turn and do not all fit, some stay. Source: LIRS (Jiang and Zhang, 2002).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

_WEIGHT = 0.5  # weight of the newest interval: popularity changes, but a single interval says little
_MEMORY = 4  # contents remembered per block of the cache
_OUTDATED = 64  # outdated entries allowed, besides as many as there are current ones

_Entry = tuple[float, int, int, int]  # -interval, -turn, place within the turn, block


@dataclass(slots=True)
class _Use:
    """When contents were last used, and the mean interval between uses; None after the first."""

    time: int
    interval: float | None


class EvictionOrder:
    """The evictable blocks of a cache of `num_blocks`. Time is the number of blocks that have become evictable so far."""

    def __init__(self, num_blocks: int) -> None:
        self._capacity = num_blocks * _MEMORY
        self._time = 0
        self._uses: OrderedDict[bytes, _Use] = OrderedDict()  # by content, the least recently used first
        self._new: OrderedDict[int, None] = OrderedDict()  # blocks used once, the least recently used first
        self._proven: OrderedDict[int, tuple[int, _Use]] = OrderedDict()  # block -> its turn, its use; order as above
        self._longest: list[_Entry] = []  # a heap of the proven blocks; some entries are outdated
        self._turn = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._proven)

    def add(self, blocks: Sequence[int], contents: Sequence[bytes]) -> None:
        """Add `blocks` that have lost their last holder, with these `contents`; the first is evicted first.

        A chain's last block comes first: without the head, the tail could never be found.
        """
        self._turn += 1
        self._time += len(blocks)
        for place, (block, content) in enumerate(zip(blocks, contents, strict=True)):
            use = self._used(content)
            if use.interval is None:
                self._new[block] = None
            else:
                self._proven[block] = self._turn, use
                heappush(self._longest, (-use.interval, -self._turn, place, block))
        while len(self._uses) > self._capacity:
            self._uses.popitem(last=False)
        if len(self._longest) > 2 * len(self._proven) + _OUTDATED:
            self._longest = [entry for entry in self._longest if self._is_current(entry)]
            heapify(self._longest)

    def remove(self, block: int) -> None:
        if block in self._new:
            del self._new[block]
        else:
            del self._proven[block]

    def pop(self) -> int:
        """Remove and return the block to evict. Raises: KeyError if there is none."""
        if self._new:
            return self._new.popitem(last=False)[0]
        oldest = next(iter(self._proven), None)
        if oldest is None:
            raise KeyError("no block is evictable")
        while not self._is_current(self._longest[0]):
            heappop(self._longest)
        negative_interval, _, _, block = self._longest[0]
        if -negative_interval <= self._time - self._proven[oldest][1].time:
            block = oldest
        del self._proven[block]
        return block

    def _used(self, content: bytes) -> _Use:
        use = self._uses.get(content)
        if use is None:
            use = self._uses[content] = _Use(self._time, None)
            return use
        interval = self._time - use.time
        mean = interval if use.interval is None else use.interval + _WEIGHT * (interval - use.interval)
        use.time, use.interval = self._time, mean
        self._uses.move_to_end(content)
        return use

    def _is_current(self, entry: _Entry) -> bool:
        proven = self._proven.get(entry[3])
        return proven is not None and proven[0] == -entry[1]
