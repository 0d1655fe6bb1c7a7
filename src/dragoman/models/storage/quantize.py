"""Compresses weight matrices to 8 bits per output channel, in pure numpy, on the threads of models.storage.constants."""

from __future__ import annotations

from typing import Any, TypeAlias

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
