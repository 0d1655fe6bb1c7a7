"""Compresses weight matrices: int8 per output channel, int4 in groups along the input.

Does: pure numpy, one matrix at a time, on all cores. Does not: build graph nodes. Called by models.layers, once per matrix.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

INT4_GROUP_SIZE = 128  # input columns that share a scale; the kernels' dynamic quantisation uses the same group


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """`weight ≈ (values - zero_points) * scales`, or without zero points.

    Shapes: values u8 [out, in] (i8 without zero points), zero_points u8 and scales f16 [out, 1].
    """

    values: Array
    zero_points: Array | None
    scales: Array


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """`weight ≈ values * scales`. Shapes: values i8 in [-8, 7] [out, groups, size], scales f16 [out, groups, 1]."""

    values: Array
    scales: Array


def quantize_int8(weight: Array, out: Array | None = None) -> Int8Matrix:
    """Asymmetric 8-bit compression per output channel; the range always holds zero.

    Shapes: weight [out, in]; `out`, for the values, u8 of the same, None = a new array.
    """
    rows = len(weight)
    stored = np.empty(weight.shape, np.uint8) if out is None else out
    all_zero_points, all_scales = np.empty((rows, 1), np.uint8), np.empty((rows, 1), np.float16)

    def fill(part: slice) -> None:
        values = _as_f32(weight[part])
        low = np.minimum(values.min(axis=1, keepdims=True), 0.0)
        high = np.maximum(values.max(axis=1, keepdims=True), 0.0)
        # The kernels read the scale as f16, so round with the value they will multiply by.
        scales = np.maximum((high - low) / 255.0, _SMALLEST_SCALE).astype(np.float16)
        inverse = 1.0 / scales.astype(np.float32)
        zero_points = np.clip(np.rint(-low * inverse), 0, 255)
        values = values * inverse
        values += zero_points
        np.rint(values, out=values)
        np.clip(values, 0, 255, out=values)
        stored[part], all_zero_points[part], all_scales[part] = values, zero_points, scales

    _for_parts(weight.shape, fill)
    return Int8Matrix(stored, all_zero_points, all_scales)


def quantize_int8_symmetric(weight: Array, out: Array | None = None) -> Int8Matrix:
    """Symmetric 8-bit compression per output channel. Shapes: weight [out, in]; `out`, for the values, i8 of the same."""
    stored = np.empty(weight.shape, np.int8) if out is None else out
    all_scales = np.empty((len(weight), 1), np.float16)

    def fill(part: slice) -> None:
        values = _as_f32(weight[part])
        largest = np.maximum(values.max(axis=1, keepdims=True), -values.min(axis=1, keepdims=True))
        scales = np.maximum(largest / 127.0, _SMALLEST_SCALE).astype(np.float16)
        values = values * (1.0 / scales.astype(np.float32))
        np.rint(values, out=values)
        np.clip(values, -128, 127, out=values)
        stored[part], all_scales[part] = values, scales

    _for_parts(weight.shape, fill)
    return Int8Matrix(stored, None, all_scales)


def quantize_int4(weight: Array, group_size: int = INT4_GROUP_SIZE) -> Int4Matrix:
    """Symmetric 4-bit compression in groups of `group_size` input columns. Shape: weight [out, in].

    Raises: ValueError if `in` is not a multiple of the group size.
    """
    rows, columns = weight.shape
    if columns % group_size:
        raise ValueError(f"{columns} input columns are not a multiple of the group size {group_size}")
    groups = columns // group_size
    matrix = Int4Matrix(np.empty((rows, groups, group_size), np.int8), np.empty((rows, groups, 1), np.float16))

    def fill(part: slice) -> None:
        grouped = _as_f32(weight[part]).reshape(-1, groups, group_size)
        # The element of largest magnitude maps to -8, using the whole asymmetric range [-8, 7].
        extreme = np.take_along_axis(grouped, np.abs(grouped).argmax(axis=2, keepdims=True), axis=2)
        scales = (extreme / -8.0).astype(np.float16)
        scales[scales == 0] = np.float16(_SMALLEST_SCALE)
        values = grouped / scales.astype(np.float32)
        np.rint(values, out=values)
        np.clip(values, -8, 7, out=values)
        matrix.values[part], matrix.scales[part] = values, scales

    _for_parts(weight.shape, fill)
    return matrix


def _as_f32(weight: Array) -> Array:
    """The values as f32; of bfloat16 these are the upper half of the bits, which numpy moves faster than it converts."""
    if weight.dtype != ml_dtypes.bfloat16:
        return weight.astype(np.float32, copy=False)
    bits = weight.view(np.uint16).astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def _for_parts(shape: tuple[int, ...], work: Callable[[slice], None]) -> None:
    """Run `work` on slices of the rows, of a size that keeps all cores busy."""
    rows, columns = shape
    step = max(1, _PART_SIZE // columns)
    parts = [slice(begin, begin + step) for begin in range(0, rows, step)]
    num_workers = min(len(parts), os.cpu_count() or 1)
    if num_workers < 2:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(num_workers, thread_name_prefix="quantize") as pool:  # numpy lets go of the GIL
        list(pool.map(work, parts))


_PART_SIZE = 524_288  # values: smaller parts wait for each other at the GIL, larger ones for memory
_SMALLEST_SCALE = 6.2e-05  # just above the smallest normal f16: an all-zero row must not divide by zero
