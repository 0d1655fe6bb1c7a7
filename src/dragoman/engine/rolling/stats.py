"""Counters of the rolling engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from dragoman.engine.base import EngineStats
from dragoman.engine.rolling.stored_prefixes.counts import StoredCounts
from dragoman.histogram import COUNTS, SECONDS, Histogram


@dataclass(slots=True)
class RollingStats:
    """Totals since the start, and gauges of the last step. Written by the engine thread; read by any, without a lock."""

    num_steps: int = 0
    num_prompt_tokens: int = 0  # computed in prefill, including recomputation after preemption
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_draft_tokens: int = 0  # drafts of speculation that were verified
    num_accepted_tokens: int = 0  # of these, those that are part of the answer
    num_prefix_queries: int = 0  # tokens looked up in the prefix cache
    num_prefix_hits: int = 0  # tokens found there
    num_running_requests: int = 0
    num_waiting_requests: int = 0
    num_used_blocks: int = 0
    stored: StoredCounts | None = None  # of prefixes on disk; None = no store
    step_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    step_tokens: Histogram = field(default_factory=lambda: Histogram(COUNTS))
    step_sequences: Histogram = field(default_factory=lambda: Histogram(COUNTS))

    def totals(self) -> EngineStats:
        stored = self.stored
        return EngineStats(
            num_stored_hits=None if stored is None else stored.num_hits,
            stored_saved_s=None if stored is None else stored.saved_s,
            num_stored_read_bytes=None if stored is None else stored.num_read_bytes,
            num_stored_written_bytes=None if stored is None else stored.num_written_bytes,
            num_stored_dropped=None if stored is None else stored.num_dropped + stored.num_refused,
            stored_read_s=None if stored is None else stored.read_s,
            stored_write_s=None if stored is None else stored.write_s,
            num_steps=self.num_steps,
            num_prompt_tokens=self.num_prompt_tokens,
            num_generated_tokens=self.num_generated_tokens,
            num_preemptions=self.num_preemptions,
            num_prefix_queries=self.num_prefix_queries,
            num_prefix_hits=self.num_prefix_hits,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
            step_s=self.step_s,
            step_tokens=self.step_tokens,
            step_sequences=self.step_sequences,
        )
