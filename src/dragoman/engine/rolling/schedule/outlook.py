"""Estimates whether a request can have its first token in time. Called by the scheduler, on the engine thread.

It errs in favour of the request: tokens cost as little as in the quickest of the last full steps, and blocks that are
cached, stored or shared cost nothing. Of the waiting requests only those count that surely begin before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Rows

from dragoman.engine.rolling.blocks.block_pools import BlockPools
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.schedule.fair_queue import FairQueue
from dragoman.engine.rolling.sequence import Sequence, SequenceGroup


class Outlook:
    """`running` and `queue` belong to the scheduler."""

    def __init__(
        self,
        config: RollingConfig,
        blocks: BlockPools,
        running: list[Sequence],
        queue: FairQueue,
        match_stored: Callable[[Rows[bytes]], int] | None = None,
    ) -> None:
        """`match_stored`: the length in blocks of the longest prefix that is cached or on disk."""
        self._finds_prefixes = config.prefix_cache != "off"
        self._blocks = blocks
        self._running = running
        self._queue = queue
        self._match_stored = match_stored

    def tokens_beyond(self, group: SequenceGroup, most: float) -> int | None:
        """Prompt tokens to compute before a waiting group's first token, if surely more than `most`; else None."""
        ahead = [one.sequences[0] for one in self._queue.ahead_of(group)]
        prefilling = [one for one in self._running if one.group.priority >= group.priority and not one.is_decoding]
        prompts = [*prefilling, *ahead, group.sequences[0]]
        if sum(_num_left(sequence) for sequence in prompts) <= most:  # the usual case
            return None
        return self._more_than(most, prompts)

    def _more_than(self, most: float, prompts: Iterable[Sequence]) -> int | None:
        total, seen = 0, set[bytes]()
        for sequence in prompts:
            total += self._num_new(sequence, seen)
            if total > most:
                return total
        return None

    def _num_new(self, sequence: Sequence, seen: set[bytes]) -> int:
        """The tokens that neither are computed nor will be for an earlier request; adds their blocks to `seen`."""
        num_left = _num_left(sequence)
        if not self._finds_prefixes:
            return num_left
        size = self._blocks.block_size
        num_blocks = sequence.num_tokens // size
        sequence.extend_digests(size, num_blocks)
        digests = sequence.digests[:num_blocks]
        num_known = sequence.num_computed_tokens // size
        if not num_known:
            num_known = self._num_known(digests)
        fresh = [digest for digest in digests[num_known:] if digest not in seen]
        seen.update(fresh)
        return min(num_left, len(fresh) * size + sequence.num_tokens % size)

    def _num_known(self, digests: Rows[bytes]) -> int:
        if self._match_stored is not None:
            return self._match_stored(digests)
        return self._blocks.match_prefix(digests, self._blocks.no_prefix).length


def _num_left(sequence: Sequence) -> int:
    return sequence.num_tokens - sequence.num_computed_tokens
