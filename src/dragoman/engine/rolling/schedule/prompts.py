"""Finds computed blocks for a prompt's start, and cuts the rest into pieces. On the engine thread."""

from __future__ import annotations

from dragoman.engine.rolling.blocks.block_manager import longest_chunk
from dragoman.engine.rolling.blocks.block_pools import BlockPools, Prefix
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.forward.batch import ScheduledBatch
from dragoman.engine.rolling.pictures import PromptPictures
from dragoman.engine.rolling.sequence import Sequence, SequenceStatus
from dragoman.engine.rolling.stored_prefixes.loading import Loads
from dragoman.errors import CapacityError


class Pieces:
    def __init__(self, config: RollingConfig, blocks: BlockPools) -> None:
        self._config = config
        self._block_size = blocks.block_size
        # A longer piece could need more blocks than other sequences' windows leave free; None = no limit.
        self._max_chunk = None
        if blocks.have_windows:
            self._max_chunk = min(
                longest_chunk(pool, blocks.block_size, config.max_batch_tokens) for pool in blocks.pools
            )

    def check_pictures(self, pictures: PromptPictures) -> None:
        """Raises: CapacityError for a picture that must be computed in one step, but is too long for one."""
        most = min(self._max_chunk or self._config.max_batch_tokens, self._config.max_batch_tokens) - 2
        if pictures.longest_span > most:
            problem = (
                f"a picture of {pictures.longest_span} tokens must be computed in one step, which has at most {most}"
            )
            raise CapacityError(f"{problem} (max_batch_tokens)", param="messages")

    def num_cuttable(self, sequence: Sequence, num_blocks: int) -> int:
        """The most blocks, up to `num_blocks`, after which the sequence may be cut without cutting a picture.

        Nor may a prompt's last token be left alone: another attention kernel would compute it, with different bits.
        """
        pictures, size = sequence.group.pictures, self._block_size
        if num_blocks * size == sequence.num_prompt_tokens - 1:
            num_blocks = max(num_blocks - 1, 0)
        if pictures is None:
            return num_blocks
        while (cut := pictures.cut_before(num_blocks * size)) != num_blocks * size:
            num_blocks = cut // size
        return num_blocks

    def num_schedulable(self, sequence: Sequence, begin: int, batch: ScheduledBatch) -> int:
        budget = self._config.max_batch_tokens - batch.num_tokens
        if sequence.group.needs_prompt_logprobs:
            budget = min(budget, self._config.max_prompt_logprob_rows - batch.num_prompt_rows)
        if batch.prefill_budget is not None and not sequence.is_decoding:
            budget = min(budget, batch.prefill_budget - batch.num_prefill_tokens)
        remaining = sequence.num_tokens - begin
        if begin < sequence.num_prompt_tokens:
            # Rows of decoded tokens cannot see what a prompt's row writes in the same step.
            remaining = sequence.num_prompt_tokens - begin
        elif self._config.has_states:
            # States go from token to token: generated tokens are computed again one by one, so that no bit differs.
            remaining = min(remaining, 1)
        if self._max_chunk is not None and not sequence.is_decoding:
            budget = min(budget, self._max_chunk)
        if batch.background is not None:
            budget = min(budget, batch.background.num_tokens(is_decoding=sequence.is_decoding))
        if sequence.group.pictures is not None:
            budget = self._budget_for_pictures(sequence, begin, budget, batch)
        return remaining if remaining <= budget else self._chunk(sequence, begin, budget)

    def _budget_for_pictures(self, sequence: Sequence, begin: int, budget: int, batch: ScheduledBatch) -> int:
        """The budget, or more for a picture at `begin` that must be computed whole: one per step is exempt from pacing."""
        assert sequence.group.pictures is not None
        end = sequence.group.pictures.cut_from(begin + 2)
        if end <= begin + 2:
            return budget
        if end == sequence.num_prompt_tokens - 1:
            end += 1
        if end - begin <= budget or not budget:
            return budget
        room = self._config.max_batch_tokens - batch.num_tokens
        return end - begin if not batch.num_prefill_tokens and end - begin <= room else 0

    def _chunk(self, sequence: Sequence, begin: int, budget: int) -> int:
        """The longest piece within the budget; neither it nor the remainder may be one token of the prompt."""
        ends = [begin + budget, begin + budget - 1]
        num_prompt = sequence.num_prompt_tokens
        if sequence.group.pictures is not None:
            ends = [sequence.group.pictures.cut_before(end) for end in ends]
        for end in ends:
            is_lone = begin == end - 1 < num_prompt != 1
            if end > begin and not is_lone and end != num_prompt - 1:
                return end - begin
        return 0


class Prefixes:
    def __init__(self, config: RollingConfig, blocks: BlockPools, pieces: Pieces, loads: Loads | None) -> None:
        self._config = config
        self._blocks = blocks
        self._pieces = pieces
        self._loads = loads

    def shared_prompt(self, sequence: Sequence) -> Prefix | None:
        """A running sibling's full blocks of the prompt; None while it computes them.

        Siblings share the prompt even without a prefix cache, so that preempted beams need no more blocks than before.
        They cannot in different regimes, after a shift, or if the sibling's windows have passed the prompt.
        """
        siblings = sequence.group.sequences
        if len(siblings) == 1:
            return self._blocks.no_prefix
        sibling = next((other for other in siblings if _is_alike(other, sequence)), None)
        if sibling is None:
            return self._blocks.no_prefix
        num_shared = self._pieces.num_cuttable(sequence, sequence.num_prompt_tokens // self._blocks.block_size)
        if sibling.num_computed_tokens < num_shared * self._blocks.block_size:
            return None
        return self._blocks.shared_prefix(sibling.sequence_id, num_shared)

    def match(self, sequence: Sequence, shared: Prefix) -> Prefix:
        """The computed blocks to start from, shared or cached. At least one token must run, to have logits."""
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
        """The blocks of the longest usable prefix, in memory or on disk."""
        assert self._loads is not None
        num_blocks = self._most_blocks(sequence)
        while True:
            length = self._loads.match(sequence.digests[:num_blocks])
            num_blocks = self._pieces.num_cuttable(sequence, length)
            if num_blocks == length:
                return length

    def _most_blocks(self, sequence: Sequence) -> int:
        return (sequence.num_tokens - 1) // self._blocks.block_size


def _is_alike(sibling: Sequence, sequence: Sequence) -> bool:
    if sibling.is_shifted or sequence.is_shifted:
        return False
    return sibling.status is SequenceStatus.RUNNING and sibling.is_long == sequence.is_long
