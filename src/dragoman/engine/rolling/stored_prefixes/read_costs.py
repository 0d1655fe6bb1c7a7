"""Estimates the time to read blocks, learned from earlier reads. On the engine thread only."""

from __future__ import annotations

from collections.abc import Callable

_FIRST_GUESS = 500e6  # bytes a second; not less than most disks: reads correct it, and nothing else does
_WEIGHT = 0.3  # weight of the newest measurement
_MAX_AGE_S = 120.0  # after which a measurement is forgotten, so that a bad moment does not count for ever
_LEAST_BYTES = 1 << 20  # the smallest read that shows the disk's speed
_LATENCY_S = 0.003  # of passing a read to a thread and back


class ReadCosts:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rate = _FIRST_GUESS
        self._measured_s: float | None = None

    def seconds(self, num_bytes: float) -> float:
        if self._measured_s is not None and self._clock() - self._measured_s > _MAX_AGE_S:
            self._rate, self._measured_s = max(self._rate, _FIRST_GUESS), None
        return _LATENCY_S + num_bytes / self._rate

    def observe(self, num_bytes: int, duration_s: float) -> None:
        if num_bytes < _LEAST_BYTES:
            return
        rate = num_bytes / max(duration_s, 1e-6)
        self._rate = rate if self._measured_s is None else self._rate + _WEIGHT * (rate - self._rate)
        self._measured_s = self._clock()
