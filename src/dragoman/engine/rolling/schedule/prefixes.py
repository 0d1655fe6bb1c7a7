"""Finds the computed blocks that a waiting sequence may begin with.

Does: look among its siblings, in the prefix cache, and on disk. Does not: take blocks, or load any. Called by the scheduler,
on the engine thread only.
"""

from __future__ import annotations

from dragoman.engine.rolling.blocks.block_pools import BlockPools, Prefix
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.schedule.pieces import Pieces
from dragoman.engine.rolling.sequence import Sequence, SequenceStatus
from dragoman.engine.rolling.stored_prefixes.loads import Loads


class Prefixes:
    """`loads`: of prefixes on disk; None = there are none."""

    def __init__(self, config: RollingConfig, blocks: BlockPools, pieces: Pieces, loads: Loads | None) -> None:
        self._config = config
        self._blocks = blocks
        self._pieces = pieces
        self._loads = loads

    def shared_prompt(self, sequence: Sequence) -> Prefix | None:
        """A running sibling's blocks for the prompt, as far as they are full; None while it computes them.

        Siblings share the prompt whatever is cached, as they do when they fork, so that beams which were preempted need no
        more blocks than before; unless the sibling is in another regime, or its windows have passed the prompt.
        """
        siblings = sequence.group.sequences
        if len(siblings) == 1:
            return self._blocks.no_prefix
        sibling = next((one for one in siblings if _is_alike(one, sequence)), None)
        if sibling is None:
            return self._blocks.no_prefix
        num_shared = self._pieces.num_cuttable(sequence, sequence.num_prompt_tokens // self._blocks.block_size)
        if sibling.num_computed_tokens < num_shared * self._blocks.block_size:
            return None
        return self._blocks.shared_prefix(sibling.sequence_id, num_shared)

    def match(self, sequence: Sequence, shared: Prefix) -> Prefix:
        """Computed blocks to start from, leaving enough to compute: the shared ones, or more that are cached.

        At least one token must run, to have logits.
        """
        if self._config.prefix_cache == "off" or sequence.group.needs_prompt_logprobs:
            return shared
        num_blocks = self._most_blocks(sequence)
        sequence.extend_digests(self._blocks.block_size, num_blocks)
        while True:
            prefix = self._blocks.match_prefix(sequence.digests[:num_blocks], shared)
            num_blocks = self._pieces.num_cuttable(sequence, prefix.length)
            if num_blocks == prefix.length:
                return prefix

    def num_loadable(self, sequence: Sequence) -> int:
        """The blocks of the longest prefix, in memory or on disk, that leaves enough to compute (see `match`)."""
        assert self._loads is not None
        num_blocks = self._most_blocks(sequence)
        while True:
            length = self._loads.match(sequence.digests[:num_blocks])
            num_blocks = self._pieces.num_cuttable(sequence, length)
            if num_blocks == length:
                return length

    def _most_blocks(self, sequence: Sequence) -> int:
        """The most that leave a token to compute."""
        return (sequence.num_tokens - 1) // self._blocks.block_size


def _is_alike(sibling: Sequence, sequence: Sequence) -> bool:
    return sibling.status is SequenceStatus.RUNNING and sibling.is_long == sequence.is_long
