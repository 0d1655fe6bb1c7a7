"""Measures how fast this machine reads memory: the ceiling of decoding, which reads every weight for every token.

Does: read a buffer far larger than the last-level cache with several threads and several kernels, and take the best.
Does not: use the server's kernels, so that the ceiling is independent of what it is compared with.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

Array = np.ndarray[Any, Any]
Read = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The best rate of any kernel, in 10^9 bytes per second, and that kernel's name."""

    gb_per_s: float
    kernel: str
    num_threads: int


def measure(size_bytes: int = 2**30, repetitions: int = 5, num_threads: int | None = None) -> Bandwidth:
    """The read bandwidth of `num_threads` threads (None = all cores) over a buffer of `size_bytes`."""
    threads = num_threads or os.cpu_count() or 1
    buffer = np.ones(size_bytes // 4, dtype=np.float32)  # written, so that every page is there
    best = Bandwidth(0.0, "", threads)
    with ThreadPoolExecutor(threads) as pool:
        for name, read in _kernels(buffer, pool, threads).items():
            read()  # warm-up
            for _ in range(repetitions):
                begin_s = time.perf_counter()
                read()
                rate = buffer.nbytes / (time.perf_counter() - begin_s) / 1e9
                if rate > best.gb_per_s:
                    best = Bandwidth(round(rate, 2), name, threads)
    return best


def _kernels(buffer: Array, pool: ThreadPoolExecutor, threads: int) -> dict[str, Read]:
    """Ways to read the whole buffer once, all threads at work."""
    # pieces that fit the inner caches, dealt out in runs: a thread reads its own stretch front to back
    parts = [np.array_split(part, max(1, part.nbytes // 2**22)) for part in np.array_split(buffer, threads)]

    def numpy_kernel(kernel: Callable[[Array], object]) -> Read:
        def work(pieces: list[Array]) -> None:
            for piece in pieces:
                kernel(piece)

        return lambda: list(pool.map(work, parts))

    return {
        "numpy dot": numpy_kernel(lambda piece: np.dot(piece, piece)),
        "numpy max": numpy_kernel(lambda piece: piece.max()),
        "numpy sum": numpy_kernel(lambda piece: piece.sum()),
        "OpenVINO reduce": _openvino_kernel(buffer, threads),
    }


def _openvino_kernel(buffer: Array, threads: int) -> Read:
    """A graph that adds up the rows of the buffer, taken as a matrix."""
    matrix = buffer[: len(buffer) // 4096 * 4096].reshape(-1, 4096)
    source = ops.parameter(list(matrix.shape), np.float32)
    model = ov.Model([ops.reduce_sum(source, np.array([1]), keep_dims=False)], [source])
    properties = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(model, "CPU", properties).create_infer_request()
    request.set_input_tensor(ov.Tensor(matrix, shared_memory=True))
    infer: Read = request.infer
    return infer
