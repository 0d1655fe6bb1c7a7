"""Counters of the rolling engine."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from dragoman.engine.base import EngineStats
from dragoman.histogram import COUNTS, SECONDS, Histogram


@dataclass(slots=True)
class StoredCounts:
    """Totals of prefixes on disk. One thread, named in its comment, changes each; any thread may read."""

    num_hits: int = 0  # tokens of prompts that were loaded instead of computed: engine thread
    saved_s: float = 0.0  # the computing time of these: engine thread
    num_read_bytes: int = 0  # engine thread
    read_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))  # the loading time: engine thread
    num_written_bytes: int = 0  # writer's thread
    write_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))  # of each block: writer's thread
    num_dropped: int = 0  # blocks evicted while the writer had no room: engine thread
    num_refused: int = 0  # blocks refused by the store: writer's thread


@dataclass(slots=True)
class RollingStats:
    """Totals since the start, and gauges of the last step. Written by the engine thread; read by any, without a lock."""

    num_steps: int = 0
    num_prompt_tokens: int = 0  # computed in prefill, including recomputation after preemption
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_context_shifts: int = 0
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
        """The fields that every engine's statistics have, by their names there, and the store's."""
        names = {field.name for field in fields(self)} & {field.name for field in fields(EngineStats)}
        totals, stored = EngineStats(**{name: getattr(self, name) for name in names}), self.stored
        if stored is None:
            return totals
        return replace(
            totals,
            num_stored_hits=stored.num_hits,
            stored_saved_s=stored.saved_s,
            num_stored_read_bytes=stored.num_read_bytes,
            num_stored_written_bytes=stored.num_written_bytes,
            num_stored_dropped=stored.num_dropped + stored.num_refused,
            stored_read_s=stored.read_s,
            stored_write_s=stored.write_s,
        )
