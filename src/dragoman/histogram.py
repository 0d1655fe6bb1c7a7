"""Counts values by size for metrics, which `metrics` exports. One thread writes, any may read; there is no lock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from time import time
from typing import NamedTuple

import numpy as np

# Bounds in seconds, of about a quarter of a decade: wide enough for one token on a fast machine and a minute's queue.
SECONDS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
_MANY = 64  # values; with fewer, counting them is faster than numpy
COUNTS = tuple(float(1 << power) for power in range(18))


class Example(NamedTuple):
    """A bucket's last value with a trace. `at_s`: since the epoch."""

    trace_id: str
    value: float
    at_s: float


class Histogram:
    """Values by upper bounds. `counts`: those up to each bound and above the one before, then the rest."""

    __slots__ = ("bounds", "counts", "examples", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.examples: dict[int, Example] = {}  # by place in `counts`

    def add(self, value: float, trace_id: str = "") -> None:
        """Count a value; with a trace it becomes the bucket's example."""
        place = bisect_left(self.bounds, value)
        self.counts[place] += 1
        self.total += value
        if trace_id:
            self.examples[place] = Example(trace_id, value, time())

    def add_all(self, values: Sequence[float], trace_id: str = "") -> None:
        """Count many values, fast for dozens of them."""
        if len(values) < _MANY:
            for value in values:
                self.add(value, trace_id)
            return
        places = np.searchsorted(self.bounds, values)
        added = np.bincount(places, minlength=len(self.counts))
        self.counts = [count + more for count, more in zip(self.counts, added.tolist(), strict=True)]
        self.total += sum(values)
        if trace_id:
            now_s = time()
            for place, value in dict(zip(places.tolist(), values, strict=True)).items():
                self.examples[place] = Example(trace_id, value, now_s)

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram with the same bounds."""
        self.counts = [mine + more for mine, more in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
        self.examples |= other.examples

    def cumulative(self) -> list[tuple[str, int]]:
        """Pairs of a bound as text, the last one "+Inf", and how many values are at most as large, for Prometheus."""
        buckets, count = [], 0
        for bound, more in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            count += more
            buckets.append((bound, count))
        return buckets
