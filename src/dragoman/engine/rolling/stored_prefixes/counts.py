"""Counters of prefixes on disk. One thread, named in its comment, changes each; any thread may read."""

from __future__ import annotations

from dataclasses import dataclass, field

from dragoman.histogram import SECONDS, Histogram


@dataclass(slots=True)
class StoredCounts:
    num_hits: int = 0  # tokens of prompts that were loaded instead of computed: engine thread
    saved_s: float = 0.0  # the computing time of these: engine thread
    num_read_bytes: int = 0  # engine thread
    read_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))  # the loading time: engine thread
    num_written_bytes: int = 0  # writer's thread
    write_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))  # of each block: writer's thread
    num_dropped: int = 0  # blocks evicted while the writer had no room: engine thread
    num_refused: int = 0  # blocks refused by the store: writer's thread
