"""Chooses factors for the columns of matrices before these are compressed.

Source: AWQ (arXiv:2306.00978), section 3.2: large channels get finer steps, by the best power of their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from dragoman.models.storage.groups import Grouped, quantize_groups

Array = np.ndarray[Any, Any]

_POWERS = np.linspace(0.0, 1.0, 11)
_MOST_ROWS = 512  # rows of a matrix that are compressed to judge a power
_MOST_SAMPLES = 1024  # samples that judge a power
_LEAST_FACTOR = 1e-4
_PARTS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7)
"""Of a group's range; here is time to try several."""


@dataclass(frozen=True, slots=True)
class Packing:
    bits: int
    group_size: int


def packed(matrix: Array, packing: Packing, importance: Array | None) -> Grouped:
    """The compressed matrix with the smallest error found. Shapes: matrix [out, in], importance f32 [in]."""
    return quantize_groups(
        matrix,
        bits=packing.bits,
        group_size=packing.group_size,
        importance=importance,
        scale_type=ml_dtypes.bfloat16,
        parts=_PARTS,
    )


def importance_of(samples: Array, factors: Array | None) -> Array:
    """The weight of each column's errors: the mean square of its samples. Shapes: f32 [n, in] -> f32 [in]."""
    squares: Array = np.square(samples, dtype=np.float32).mean(axis=0)
    if factors is not None:
        squares = squares / np.square(factors)
    mean = max(float(squares.mean()), 1e-12)
    return np.asarray(squares / mean + 1e-4, dtype=np.float32)


def shared(sizes: Array, num_heads: int, num_kv_heads: int) -> Array:
    """The size of each value's numbers, averaged over the heads that read it and repeated for them."""
    heads = sizes.reshape(num_kv_heads, num_heads // num_kv_heads, -1)
    return np.broadcast_to(heads.mean(axis=1, keepdims=True), heads.shape).reshape(-1)


def chosen_factors(matrices: Sequence[Array], samples: Array, sizes: Array, packing: Packing) -> Array | None:
    """The columns' factors with the smallest error of the samples' products; None = none improve it.

    Shapes: matrices [out, in], samples f32 [n, in], sizes f32 [in]: of the numbers in each column.
    """
    samples = samples[:: max(len(samples) // _MOST_SAMPLES, 1)]
    parts = [np.asarray(matrix[:: max(len(matrix) // _MOST_ROWS, 1)]).astype(np.float32) for matrix in matrices]
    expected = [samples @ part.T for part in parts]
    best, least = None, np.inf
    for power in _POWERS:
        factors = np.maximum(sizes, _LEAST_FACTOR * max(float(sizes.max()), 1e-20)) ** np.float32(power)
        factors /= np.sqrt(factors.max() * factors.min())
        loss = 0.0
        for part, product in zip(parts, expected, strict=True):
            found = quantize_groups(
                part * factors,
                bits=packing.bits,
                group_size=packing.group_size,
                importance=importance_of(samples, factors),
                scale_type=ml_dtypes.bfloat16,
            )
            loss += float(np.square(samples @ (found.unpacked() / factors).T - product).sum())
        if loss < least:
            best, least = (None if power == 0 else factors), loss
    return best
