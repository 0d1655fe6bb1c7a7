"""Measures the read speed of memory, which bounds the decoding of one sequence. Nothing else should compute meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import numpy as np

BUFFER_BYTES = 256 << 20  # more than the caches
_REPEATS = 3


def memory_bandwidth(num_threads: int, size_bytes: int = BUFFER_BYTES) -> float:
    """Bytes per second that `num_threads` threads read together, the best of a few tries. Takes `size_bytes` of memory."""
    parts = np.array_split(np.ones(size_bytes // 4, np.float32), num_threads)
    with ThreadPoolExecutor(num_threads) as pool:
        best = min(_seconds(pool, parts) for _ in range(_REPEATS))
    return size_bytes / best


def _seconds(pool: ThreadPoolExecutor, parts: Sequence[np.ndarray[Any, Any]]) -> float:
    begin = perf_counter()
    list(pool.map(np.max, parts))
    return perf_counter() - begin
