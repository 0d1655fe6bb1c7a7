"""Quantises matrices into the block types of GGUF files that the `gguf` package reads but does not write.

Does: round to the nearest value that a block can hold, with the scale that its farthest value asks for. Does not: search for
better scales, as llama.cpp's own quantiser does, so a file of its making has lost less. Source of the layouts: ggml's
ggml-common.h, ggml-quants.c. Used by `gguf_writer`; what is written is read by the package, not by code of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np

Array = np.ndarray[Any, Any]

IQ4_NL_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def quantise(values: Array, type_name: str) -> Array:
    """The rows as bytes of blocks of that type. Shapes: f32 [..., columns] -> u8 [..., bytes of a row]."""
    kind = gguf.GGMLQuantizationType[type_name]
    values = np.ascontiguousarray(values, dtype=np.float32)
    if type_name not in _TYPES:
        packed: Array = gguf.quants.quantize(values, kind)
        return packed
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    return _TYPES[type_name](values.reshape(-1, block)).reshape(*values.shape[:-1], -1)


# --- scales -----------------------------------------------------------------------------------------------------------


def _from_lowest(values: Array, size: int, most: int, most_scale: int) -> tuple[Array, Array, Array, Array, Array]:
    """Parts of `size` values from their lowest one on: integers up to `most`, scales and minima of parts, of the block.

    Shapes: values [blocks, 256] -> u8 [blocks, 256], u8 [blocks, parts] twice, f16 [blocks, 1] twice.
    """
    parts = values.reshape(len(values), -1, size)
    low = np.minimum(parts.min(axis=2), 0)
    steps = (parts.max(axis=2).clip(0) - low) / most
    scale, least = (_half(found.max(axis=1, keepdims=True) / most_scale) for found in (steps, -low))
    scales, minima = _rounded(steps, scale, 0, most_scale), _rounded(-low, least, 0, most_scale)
    shifted = parts + (minima * least.astype(np.float32))[:, :, None]
    integers = _rounded(shifted, (scales * scale.astype(np.float32))[:, :, None], 0, most)
    return (
        integers.reshape(values.shape).astype(np.uint8),
        scales.astype(np.uint8),
        minima.astype(np.uint8),
        scale,
        least,
    )


def _around_zero(values: Array, bits: int, lowest_scale: int) -> tuple[Array, Array, Array]:
    """Parts of 16 values around zero: integers of so many bits from 0 on, scales of parts, scale of the block.

    Shapes: values [blocks, 256] -> u8 [blocks, 256], i32 [blocks, 16], f16 [blocks, 1].
    """
    parts = values.reshape(len(values), -1, 16)
    half = 1 << (bits - 1)
    steps = _farthest(parts) / -half
    scale = _half(_farthest(steps)[:, None] / lowest_scale)
    scales = _rounded(steps, scale, lowest_scale, -lowest_scale - 1)
    integers = _rounded(parts, (scales * scale.astype(np.float32))[:, :, None], -half, half - 1) + half
    return integers.reshape(values.shape).astype(np.uint8), scales.astype(np.int32), scale


def _farthest(values: Array) -> Array:
    """Of each row the value that is farthest from zero."""
    places = np.abs(values).argmax(axis=-1)[..., None]
    return np.take_along_axis(values, places, axis=-1)[..., 0]


def _half(values: Array) -> Array:
    halves: Array = values.astype(np.float16)
    return halves


def _rounded(values: Array, steps: Array, lowest: int, highest: int) -> Array:
    """The nearest integers of steps; none of steps that are zero."""
    steps = steps.astype(np.float32)
    inverse = np.divide(1.0, steps, out=np.zeros_like(steps), where=steps != 0)
    found: Array = np.clip(np.rint(values * inverse), lowest, highest)
    return found


# --- layouts ----------------------------------------------------------------------------------------------------------


def _q2_k(values: Array) -> Array:
    integers, scales, minima, scale, least = _from_lowest(values, 16, 3, 15)
    return _joined(scales | minima << 4, _quarters(integers), scale, least)


def _q3_k(values: Array) -> Array:
    integers, scales, scale = _around_zero(values, 3, -32)
    return _joined(_bits_of_bytes(integers >> 2), _quarters(integers & 3), _six_bits(scales + 32), scale)


def _q4_k(values: Array) -> Array:
    integers, scales, minima, scale, least = _from_lowest(values, 32, 15, 63)
    return _joined(scale, least, _six_bits_twice(scales, minima), _nibbles(integers, 32))


def _q5_k(values: Array) -> Array:
    integers, scales, minima, scale, least = _from_lowest(values, 32, 31, 63)
    high, low = _bits_of_bytes(integers >> 4), _nibbles(integers & 15, 32)
    return _joined(scale, least, _six_bits_twice(scales, minima), high, low)


def _q6_k(values: Array) -> Array:
    integers, scales, scale = _around_zero(values, 6, -128)
    return _joined(_nibbles(integers & 15, 64), _quarters(integers >> 4), scales.astype(np.int8), scale)


def _iq4_nl(values: Array) -> Array:
    scale = _half(_farthest(values)[:, None] / IQ4_NL_VALUES[0])
    steps = scale.astype(np.float32)
    scaled = np.divide(values, steps, out=np.zeros_like(values), where=steps != 0)
    codes = np.abs(scaled[:, :, None] - IQ4_NL_VALUES).argmin(axis=2).astype(np.uint8)
    return _joined(scale, _nibbles(codes, 16))


_TYPES: dict[str, Callable[[Array], Array]] = {
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_NL": _iq4_nl,
}  # fmt: skip


def _joined(*parts: Array) -> Array:
    """Fields of blocks behind each other, as bytes."""
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], axis=1)


def _nibbles(integers: Array, size: int) -> Array:
    """Two values in a byte: runs of `size` in the low halves, the next in the high ones."""
    pairs = integers.reshape(len(integers), -1, 2, size)
    packed: Array = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(len(integers), -1)
    return packed


def _quarters(integers: Array) -> Array:
    """Four values in a byte: of 128 values the first 32 in the lowest bits."""
    runs = integers.reshape(len(integers), 2, 4, 32)
    packed = runs[:, :, 0] | runs[:, :, 1] << 2 | runs[:, :, 2] << 4 | runs[:, :, 3] << 6
    rows: Array = packed.reshape(len(integers), -1)
    return rows


def _bits_of_bytes(bits: Array) -> Array:
    """Eight values of one bit in a byte: the n-th 32 in the n-th bit."""
    return np.packbits(bits.reshape(len(bits), 8, 32), axis=1, bitorder="little").reshape(len(bits), 32)


def _six_bits(scales: Array) -> Array:
    """Sixteen numbers in twelve bytes: low halves of the first eight below those of the others, then two bits of each."""
    numbers = scales.astype(np.uint8)
    high = (numbers >> 4).reshape(-1, 4, 4)
    tops = high[:, 0] | high[:, 1] << 2 | high[:, 2] << 4 | high[:, 3] << 6
    return np.concatenate([numbers[:, :8] & 15 | (numbers[:, 8:] & 15) << 4, tops], axis=1)


def _six_bits_twice(scales: Array, minima: Array) -> Array:
    """Eight scales and eight minima in twelve bytes: the first four of each whole, below the top bits of the others."""
    first = [found[:, :4] | found[:, 4:] >> 4 << 6 for found in (scales, minima)]
    return np.concatenate([*first, scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4], axis=1)
