"""Compresses weight matrices to 8 bits per output channel, or to few bits in groups of columns, which lose least.

Pure numpy. Called by models.storage.constants on its threads, and by `dragoman.tools.compress`. A smaller scale than
the range asks for cuts off one or two values and has finer steps for all others, so several are tried. For each trial a
least-squares fit gives the best scale, and two sums the error that remains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

SMALLEST_SCALE = 6.2e-05  # just above the smallest normal f16: an all-zero row must not divide by zero
_INFINITE_F16 = 0x7C00  # its bits; larger ones are NaN


def quantize_int8(weight: Array, out: Array) -> tuple[Array, Array]:
    """The zero points u8 and scales f16 [out, 1] of `weight ≈ (out - zero_points) * scales`; the range holds zero.

    Shapes: weight [out, in], `out` u8 of the same. Raises: ValueError if a number is not finite or too large; as the
    others.
    """
    low, high = range_with_zero(weight)
    # The kernels read the scale as f16, so round with the value they will multiply by.
    scales = f16_scales(np.maximum((high - low) / 255.0, SMALLEST_SCALE))
    inverse = 1.0 / scales.astype(np.float32)
    zero_points = np.clip(np.rint(-low * inverse), 0, 255)
    values = _scaled(weight, inverse)
    values += zero_points
    np.clip(values, 0, 255, out=values)
    np.rint(values, out=out, casting="unsafe")
    return zero_points.astype(np.uint8), scales


def quantize_int8_symmetric(weight: Array, out: Array) -> Array:
    """The scales f16 [out, 1] of `weight ≈ out * scales`. Shapes: weight [out, in], `out` i8 of the same."""
    low, high = range_with_zero(weight)
    scales = f16_scales(np.maximum(np.maximum(high, -low) / 127.0, SMALLEST_SCALE))
    values = _scaled(weight, 1.0 / scales.astype(np.float32))
    np.rint(values, out=out, casting="unsafe")  # at most 127.1: a scale is off by 2 ** -11 at most
    return scales


def fits_f16(half: Array) -> bool:
    return bool((half.view(np.uint16) & 0x7FFF).max() < _INFINITE_F16)


def f16_scales(scales: Array) -> Array:
    with np.errstate(over="ignore"):  # checked below
        stored = scales.astype(np.float16)
    if not np.isfinite(stored).all():
        raise ValueError("it holds numbers that are not finite, or too large for a scale of f16")
    return stored


def range_with_zero(weight: Array) -> tuple[Array, Array]:
    """The least and the greatest of each row's values and zero, two of f32 [out, 1], by their bits: faster for bfloat16."""
    size = weight.itemsize
    bits = weight.view(f"u{size}").max(
        axis=1, keepdims=True
    )  # the sign is the highest bit: of negative ones the farthest
    low = np.where(bits.view(f"i{size}") < 0, bits, 0).astype(bits.dtype)
    high = np.maximum(weight.view(f"i{size}").max(axis=1, keepdims=True), 0)
    return low.view(weight.dtype).astype(np.float32), high.view(weight.dtype).astype(np.float32)


def _scaled(weight: Array, factors: Array) -> Array:
    values = _as_f32(weight)
    return np.multiply(values, factors, out=None if values is weight else values)


def copy_as_f32(weight: Array, out: Array) -> None:
    """Write the values into an array of f32; bfloat16 is the upper half of the bits, which moves faster."""
    if weight.dtype == ml_dtypes.bfloat16:
        np.left_shift(weight.view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)
    else:
        np.copyto(out, weight)


def _as_f32(weight: Array) -> Array:
    if weight.dtype == np.float32:
        return weight
    values = np.empty(weight.shape, np.float32)
    copy_as_f32(weight, values)
    return values


INT4_GROUP_SIZE = 128  # input columns that share a scale; the kernels' dynamic quantisation uses the same group
# Of our kernels: with one scale for each output a released checkpoint lost half as much again, more than with Q8_0.
INT8_GROUP_SIZE = 128

_BLOCK_SIZE = 262_144  # values that are searched at once: with what is computed of them they stay in the caches
_PART = 0.92  # part of a group's range that the integers span; trying more gains less than a hundredth


class Grouped(NamedTuple):
    """A matrix in groups: `weight ≈ (values - zero_points) * scales`.

    Shapes: values u8 [out, groups, group size], zero_points u8 and scales [out, groups, 1].
    """

    values: Array
    zero_points: Array
    scales: Array

    def unpacked(self) -> Array:
        shifted = self.values.astype(np.float32) - self.zero_points
        restored: Array = (shifted * self.scales.astype(np.float32)).reshape(len(self.values), -1)
        return restored


def quantize_groups(
    weight: Array,
    *,
    bits: int = 4,
    group_size: int = INT4_GROUP_SIZE,
    importance: Array | None = None,
    scale_type: Any = np.float16,
    parts: Sequence[float] = (_PART,),
) -> Grouped:
    """The matrix in groups of input columns, at the least square error that is found; integers below 2 ** `bits`.

    `importance`: f32 [in], of each column's error, None = all alike. `scale_type`: f16 or bfloat16.
    `parts`: of a group's range that the integers span, which are tried.
    Raises: ValueError if `in` is not a multiple of the group size, or a number is not finite or too large.
    """
    rows, columns = weight.shape
    if columns % group_size:
        raise ValueError(f"{columns} input columns are not a multiple of the group size {group_size}")
    shape = (rows, columns // group_size, group_size)
    scale_shape = (*shape[:2], 1)
    found = Grouped(np.empty(shape, np.uint8), np.empty(scale_shape, np.uint8), np.empty(scale_shape, scale_type))
    counts = None if importance is None else importance.astype(np.float32).reshape(1, *shape[1:])
    step = min(max(_BLOCK_SIZE // columns, 1), rows)
    # Made once: fresh memory for every block would cost as much as what is computed in it.
    values, space = np.empty((step, *shape[1:]), np.float32), np.empty((step, *shape[1:]), np.float32)
    for block in (slice(begin, min(begin + step, rows)) for begin in range(0, rows, step)):
        grouped, buffer = values[: block.stop - block.start], space[: block.stop - block.start]
        part = np.ascontiguousarray(weight[block])
        copy_as_f32(part, grouped.reshape(-1, columns))
        low, high = (end.reshape(-1, shape[1], 1) for end in range_with_zero(part.reshape(-1, group_size)))
        if not np.isfinite(high - low).all():
            raise ValueError("it holds numbers that are not finite, or too large for a scale of f16")
        scales, zero_points = _best(grouped, list(_trials(low, high, (1 << bits) - 1, parts)), bits, counts, buffer)
        found.zero_points[block], found.scales[block] = zero_points, f16_scales(scales).astype(scale_type)
        integers = _integers(grouped, found.scales[block].astype(np.float32), zero_points, bits, buffer)
        np.add(integers, zero_points, out=found.values[block], casting="unsafe")
    return found


def _best(
    grouped: Array, trials: Sequence[tuple[Array, Array]], bits: int, counts: Array | None, buffer: Array
) -> tuple[Array, Array]:
    """Scale and zero point of each group, f32 [rows, groups, 1]. `buffer`: to compute in."""
    best = np.full((*grouped.shape[:2], 1), SMALLEST_SCALE, np.float32)
    zeros, gains = np.zeros_like(best), np.zeros_like(best)
    weighed = grouped if counts is None else grouped * counts
    for scales, zero_points in trials:
        integers = _integers(grouped, scales, zero_points, bits, buffer)
        along = np.einsum("rgc,rgc->rg", integers, weighed)[:, :, None]
        squares = np.einsum("rgc,rgc->rg", integers, integers if counts is None else integers * counts)[:, :, None]
        fitted = along / np.maximum(squares, np.finfo(np.float32).tiny)
        # the fit's share of the sum of squares: the more, the less error is left
        gain = along * fitted
        is_better = (gain > gains) & (fitted >= SMALLEST_SCALE)
        for kept, tried in ((best, fitted), (zeros, zero_points), (gains, gain)):
            np.copyto(kept, tried, where=is_better)
    return best, zeros


def _trials(low: Array, high: Array, highest: int, parts: Sequence[float]) -> Iterator[tuple[Array, Array]]:
    for part in parts:
        scales = np.maximum((high - low) * np.float32(part / highest), SMALLEST_SCALE)
        yield scales, np.clip(np.rint((highest - (high + low) / scales) * 0.5), 0, highest)
    # rounding to nearest around a zero in the middle, the value that is farthest from it at the end
    half = (highest + 1) // 2
    scales = np.maximum(np.maximum(high, -low) / half, SMALLEST_SCALE)
    yield scales, np.where(high > -low, half - 1, half).astype(np.float32)


def _integers(grouped: Array, scales: Array, zero_points: Array, bits: int, out: Array) -> Array:
    np.multiply(grouped, 1.0 / scales, out=out)
    np.rint(out, out=out)
    np.maximum(out, -zero_points, out=out)
    np.minimum(out, (1 << bits) - 1 - zero_points, out=out)
    return out


def pack_int4(values: Array) -> Array:
    """Two values a byte, the even one in the low half. Shapes: u8 or i8 [..., an even number] -> u8 [half as many]."""
    pairs = values.reshape(-1).view(np.uint16) & 0x0F0F
    packed: Array = (pairs | (pairs >> 4)).astype(np.uint8)
    return packed


def put_int4(packed: Array, begin: int, values: Array) -> None:
    """Write values of four bits from the `begin`-th on among those of `packed` u8 [bytes], two in a byte."""
    first, last = begin // 2, -(-(begin + values.size) // 2)
    halves = np.stack([packed[first:last] & 0x0F, packed[first:last] >> 4], axis=1).reshape(-1)
    halves[begin - 2 * first :][: values.size] = values.reshape(-1)
    packed[first:last] = pack_int4(halves)
