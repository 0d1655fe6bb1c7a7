"""A scheduler to step without a model."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from time import perf_counter
from typing import Any

from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.engine.rolling.blocks.block_pools import BlockPools
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.forward.batch import ScheduledBatch
from dragoman.engine.rolling.pacing import Pacer
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.schedule.scheduler import Scheduler
from dragoman.engine.rolling.sequence import AddRequest, Sequence, SequenceGroup
from dragoman.engine.rolling.stats import RollingStats
from dragoman.types import FinishReason, TokenMasker
from tests.engine.integrity import check_scheduler
from tests.engine.naive import make_request

VOCAB_SIZE = 16


class FixedPace(Pacer):
    """Allows what it is told to, whatever runs and however long it takes."""

    budget: int | None = None

    def prompt_budget(self, num_rows: int, num_prompts: int) -> int | None:
        return self.budget


class Bench:
    """A scheduler, and a stand-in for forward, sampler and update that appends a fixed token."""

    def __init__(
        self,
        config: RollingConfig,
        *,
        num_blocks: int | Rows[int] = 64,
        block_size: int = 4,
        windows: Rows[int] = (0,),
        long_context_from: int | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        counts = [num_blocks] * len(windows) if isinstance(num_blocks, int) else num_blocks
        pools = [CachePool(count, window) for count, window in zip(counts, windows, strict=True)]
        self.blocks = BlockPools(pools, block_size)
        self.stats = RollingStats()
        self.pace = FixedPace(max_slowdown=0)
        self.scheduler = Scheduler(
            config, self.blocks, self.stats, pacer=self.pace, clock=clock, long_context_from=long_context_from
        )
        self.sampler = Sampler(VOCAB_SIZE)
        self.num_added = 0

    def add(
        self,
        num_prompt_tokens: int,
        *,
        first_token: int = 1,
        max_tokens: int = 100,
        masker: TokenMasker | None = None,
        **sampling: Any,
    ) -> SequenceGroup:
        """Queue a group whose prompt is first_token, first_token + 1, ..."""
        prompt = [(first_token + position) % VOCAB_SIZE for position in range(num_prompt_tokens)]
        request = make_request(prompt, max_tokens=max_tokens, **sampling)
        group = SequenceGroup(AddRequest(self.num_added, request, masker), self.num_added, self.sampler)
        self.scheduler.add(group)
        self.num_added += 1
        return group

    def step(self, prefill_budget: int | None = None) -> ScheduledBatch:
        """Schedule, then let every complete row append one token."""
        self.pace.budget = prefill_budget
        batch = self.scheduler.schedule()
        for entry in batch.entries:
            sequence, group = entry.sequence, entry.sequence.group
            begin = sequence.num_computed_tokens
            sequence.num_computed_tokens += entry.num_new_tokens
            self.scheduler.commit(sequence, begin)
            if group.prompt_logprobs is not None:
                group.prompt_logprobs.extend([None] * entry.num_prompt_rows)
            if sequence.num_computed_tokens == sequence.num_tokens:
                self.append_tokens(group, sequence)
        check_scheduler(self.scheduler)
        return batch

    def append_tokens(self, group: SequenceGroup, sequence: Sequence) -> None:
        sequence.drop_drafts()
        grown = [sequence]
        if not group.is_forked:
            self.scheduler.fork(group)
            grown = group.sequences
        for one in grown:
            one.token_ids.append(15 - one.index)
            if one.num_generated_tokens >= group.request.max_tokens:
                one.finish_reason = FinishReason.LENGTH
                self.scheduler.finish(one)
