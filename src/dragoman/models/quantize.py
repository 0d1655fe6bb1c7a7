"""Compresses weight matrices: int8 per output channel, int4 in groups along the input.

Does: pure numpy, one matrix at a time. Does not: build graph nodes. Called by models.layers, once per matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

INT4_GROUP_SIZE = 128  # input columns that share a scale; the kernels' dynamic quantisation uses the same group


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """`weight ≈ (values - zero_points) * scales`. Shapes: values u8 [out, in], zero_points u8 and scales f16 [out, 1]."""

    values: Array
    zero_points: Array
    scales: Array


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """`weight ≈ values * scales`. Shapes: values i8 in [-8, 7] [out, groups, size], scales f16 [out, groups, 1]."""

    values: Array
    scales: Array


def quantize_int8(weight: Array) -> Int8Matrix:
    """Asymmetric 8-bit compression per output channel; the range always holds zero. Shape: weight [out, in]."""
    weight = weight.astype(np.float32, copy=False)
    low = np.minimum(weight.min(axis=1, keepdims=True), 0.0)
    high = np.maximum(weight.max(axis=1, keepdims=True), 0.0)
    # The kernels read the scale as f16, so round with the value they will multiply by.
    scales = np.maximum((high - low) / 255.0, _SMALLEST_SCALE).astype(np.float16)
    inverse = 1.0 / scales.astype(np.float32)
    zero_points = np.clip(np.rint(-low * inverse), 0, 255)
    values = weight * inverse
    values += zero_points
    np.rint(values, out=values)
    np.clip(values, 0, 255, out=values)
    return Int8Matrix(values.astype(np.uint8), zero_points.astype(np.uint8), scales)


def quantize_int4(weight: Array, group_size: int = INT4_GROUP_SIZE) -> Int4Matrix:
    """Symmetric 4-bit compression in groups of `group_size` input columns. Shape: weight [out, in].

    Raises: ValueError if `in` is not a multiple of the group size.
    """
    rows, columns = weight.shape
    if columns % group_size:
        raise ValueError(f"{columns} input columns are not a multiple of the group size {group_size}")
    grouped = weight.astype(np.float32, copy=False).reshape(rows, columns // group_size, group_size)
    # The element of largest magnitude maps to -8, using the whole asymmetric range [-8, 7].
    extreme = np.take_along_axis(grouped, np.abs(grouped).argmax(axis=2, keepdims=True), axis=2)
    scales = (extreme / -8.0).astype(np.float16)
    scales[scales == 0] = np.float16(_SMALLEST_SCALE)
    values = np.clip(np.rint(grouped / scales.astype(np.float32)), -8, 7)
    return Int4Matrix(values.astype(np.int8), scales)


_SMALLEST_SCALE = 6.2e-05  # just above the smallest normal f16: an all-zero row must not divide by zero
