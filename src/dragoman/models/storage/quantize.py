"""Compresses weight matrices: int8 per output channel, int4 in groups along the input.

Does: pure numpy, one matrix or a part of its rows at a time. Does not: use threads, or build graph nodes.
Called by models.storage.constants, on its threads.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

INT4_GROUP_SIZE = 128  # input columns that share a scale; the kernels' dynamic quantisation uses the same group

_SMALLEST_SCALE = 6.2e-05  # just above the smallest normal f16: an all-zero row must not divide by zero
_INFINITE_F16 = 0x7C00  # its bits; larger ones are no numbers


def quantize_int8(weight: Array, out: Array) -> tuple[Array, Array]:
    """Asymmetric 8-bit compression per output channel: `weight ≈ (out - zero_points) * scales`; the range holds zero.

    Returns zero points and scales. Shapes: weight [out, in], `out` u8 of the same; zero_points u8 and scales f16 [out, 1].
    Raises: ValueError if a number is not finite or too large; as do the others.
    """
    low, high = _range_with_zero(weight)
    # The kernels read the scale as f16, so round with the value they will multiply by.
    scales = _f16_scales(np.maximum((high - low) / 255.0, _SMALLEST_SCALE))
    inverse = 1.0 / scales.astype(np.float32)
    zero_points = np.clip(np.rint(-low * inverse), 0, 255)
    values = _scaled(weight, inverse)
    values += zero_points
    np.clip(values, 0, 255, out=values)
    np.rint(values, out=out, casting="unsafe")
    return zero_points.astype(np.uint8), scales


def quantize_int8_symmetric(weight: Array, out: Array) -> Array:
    """Symmetric 8-bit compression per output channel: `weight ≈ out * scales`. Returns the scales.

    Shapes: weight [out, in], `out` i8 of the same; scales f16 [out, 1].
    """
    low, high = _range_with_zero(weight)
    scales = _f16_scales(np.maximum(np.maximum(high, -low) / 127.0, _SMALLEST_SCALE))
    values = _scaled(weight, 1.0 / scales.astype(np.float32))
    np.rint(values, out=out, casting="unsafe")  # at most 127.1: a scale is off by 2 ** -11 at most
    return scales


def quantize_int4(weight: Array) -> tuple[Array, Array]:
    """Symmetric 4-bit compression in groups of input columns: `weight ≈ values * scales`. Returns values and scales.

    Shapes: weight [out, in]; values i8 in [-8, 7] [out, groups, INT4_GROUP_SIZE], scales f16 [out, groups, 1].
    Raises: ValueError if `in` is not a multiple of the group size.
    """
    rows, columns = weight.shape
    if columns % INT4_GROUP_SIZE:
        raise ValueError(f"{columns} input columns are not a multiple of the group size {INT4_GROUP_SIZE}")
    grouped = _as_f32(weight).reshape(rows, -1, INT4_GROUP_SIZE)
    # The element of largest magnitude maps to -8, using the whole asymmetric range [-8, 7].
    extreme = np.take_along_axis(grouped, np.abs(grouped).argmax(axis=2, keepdims=True), axis=2)
    scales = _f16_scales(extreme / -8.0)
    scales[scales == 0] = np.float16(_SMALLEST_SCALE)
    values = grouped / scales.astype(np.float32)
    np.rint(values, out=values)
    np.clip(values, -8, 7, out=values)
    return values.astype(np.int8), scales


def pack_int4(values: Array) -> Array:
    """Two values a byte, the even one in the low half. Shapes: i8 [..., an even number] -> u8 [half as many in all]."""
    flat = values.reshape(-1).view(np.uint8) & 0x0F
    packed: Array = flat[0::2] | (flat[1::2] << 4)
    return packed


def fits_f16(half: Array) -> bool:
    """True if every value of an array of f16 is finite."""
    return bool((half.view(np.uint16) & 0x7FFF).max() < _INFINITE_F16)


def _f16_scales(scales: Array) -> Array:
    with np.errstate(over="ignore"):  # looked for
        stored = scales.astype(np.float16)
    if not np.isfinite(stored).all():
        raise ValueError("it holds numbers that are not finite, or too large for a scale of f16")
    return stored


def _range_with_zero(weight: Array) -> tuple[Array, Array]:
    """The least and the greatest of each row's values and zero. Shapes: weight [out, in] -> two of f32 [out, 1].

    Numbers of one sign are ordered as their bits are, and numpy compares integers of 2 bytes far faster than bfloat16.
    """
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


def _as_f32(weight: Array) -> Array:
    """The values as f32; of bfloat16 these are the upper half of the bits, which numpy moves faster than it converts."""
    if weight.dtype != ml_dtypes.bfloat16:
        return weight.astype(np.float32, copy=False)
    return np.left_shift(weight.view(np.uint16), 16, dtype=np.uint32).view(np.float32)
