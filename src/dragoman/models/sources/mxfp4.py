"""Matrices of 4-bit floats in groups of 32 columns with a power of two each, as gpt-oss stores its experts.

Three forms: integers of 8 bits in the same groups, without loss; rows of four bits for our kernels; numbers. Rows are
computed on the storage's threads. Source: OCP Microscaling Formats (MX) 1.0, section 5.3.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dragoman.models.config import ModelError
from dragoman.models.sources.base import Array, LazyRows, PackedMatrix, Stack, Turned
from dragoman.models.sources.layout import Headers, Quantised, Tensors, check_shape, header

GROUP_SIZE = 32

_BLOCKS, _SCALES = "_blocks", "_scales"  # behind the name of a stack of matrices: its two tensors

_CODES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=np.float32)
_VALUES = np.concatenate([_CODES, -_CODES])  # the highest of four bits is the sign
_PAIRS = np.stack([np.tile(_VALUES, 16), np.repeat(_VALUES, 16)], axis=1)  # each byte's values, low half first
_TWICE = (2 * _PAIRS).astype(np.int8)
_BIAS = 127
_LARGEST_SCALE = 252  # above it 6 times the power of two overflows f32, and 255 is NaN


class Mxfp4Matrix(LazyRows):
    """A matrix [out, in]. Shapes: blocks u8 [out, groups, 16], two values a byte; scales u8 [out, groups]."""

    def __init__(self, blocks: Array, scales: Array) -> None:
        if scales.size and scales.max() > _LARGEST_SCALE:
            raise ModelError(f"an MXFP4 scale is {scales.max()}, allowed: 0 to {_LARGEST_SCALE}")
        self._blocks, self._scales = blocks, scales

    @property
    def shape(self) -> tuple[int, int]:
        rows, groups = self._scales.shape
        return rows, groups * GROUP_SIZE

    def __getitem__(self, rows: slice | Array) -> Mxfp4Matrix:
        return Mxfp4Matrix(self._blocks[rows], self._scales[rows])

    def values(self) -> Array:
        exponents = self._scales.astype(np.int32)[:, :, None, None] - _BIAS
        values: Array = np.ldexp(_PAIRS[self._blocks], exponents).reshape(self.shape)
        return values

    def packed(self) -> PackedMatrix:
        """The same values as integers, twice what four bits mean, and half of each scale."""
        halves = np.ldexp(np.float32(1), self._scales.astype(np.int32) - _BIAS - 1)
        return PackedMatrix(TwiceMxfp4(self._blocks, self._scales), halves)


class TwiceMxfp4(LazyRows):
    """Rows of twice the values that four bits mean, without scales. Shapes: as `Mxfp4Matrix`."""

    dtype = np.dtype(np.int8)

    def __init__(self, blocks: Array, scales: Array) -> None:
        self._blocks, self._scales = blocks, scales

    @property
    def shape(self) -> tuple[int, int]:
        rows, groups, _ = self._blocks.shape
        return rows, groups * GROUP_SIZE

    def __getitem__(self, rows: slice | Array) -> TwiceMxfp4:
        return TwiceMxfp4(self._blocks[rows], self._scales[rows])

    def values(self) -> Array:
        return _TWICE[self._blocks].reshape(self.shape)

    def file_rows(self) -> Array:
        """The rows as GGUF files have them: a group's scale, then bytes of the codes of columns c and c + 16."""
        codes = np.stack([self._blocks & 0x0F, self._blocks >> 4], axis=3).reshape(*self._scales.shape, GROUP_SIZE)
        halves = codes[:, :, : GROUP_SIZE // 2] | codes[:, :, GROUP_SIZE // 2 :] << 4
        return np.concatenate([self._scales[:, :, None], halves], axis=2).reshape(len(self._scales), -1)


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """gpt-oss's layout: stacks of matrices [n, in, out]. `keeps`: as groups of integers of `bits`; else they are numbers."""

    keeps: bool
    bits: int = 8
    label: str = "MXFP4"
    unread: tuple[str, ...] = ()

    def find(self, headers: Headers) -> dict[str, Quantised]:
        return {
            name: self._stack(headers, name)
            for blocks in headers
            if (name := blocks.removesuffix(_BLOCKS)) != blocks and name + _SCALES in headers
        }

    def _stack(self, headers: Headers, name: str) -> Quantised:
        blocks, scales = name + _BLOCKS, name + _SCALES
        *groups, size = header(headers, blocks, "U8", rank=4).shape
        header(headers, scales, "U8", "F8_E8M0", rank=3)
        check_shape(headers, scales, tuple(groups))
        if 2 * size != GROUP_SIZE:
            raise ModelError(f"tensor {blocks!r} has groups of {size} bytes, allowed: {GROUP_SIZE // 2}")
        count, rows, columns = groups[0], groups[1], groups[2] * GROUP_SIZE

        def read(tensors: Tensors) -> Any:
            codes, exponents = tensors.stored(blocks), tensors.stored(scales).view(np.uint8)
            return Turned(
                Stack((count, rows, columns), lambda index: self._matrix(Mxfp4Matrix(codes[index], exponents[index])))
            )

        group_size = GROUP_SIZE if self.keeps else 0
        return Quantised((count, columns, rows), (blocks, scales), read, group_size, self.bits)

    def _matrix(self, matrix: Mxfp4Matrix) -> Mxfp4Matrix | PackedMatrix:
        return matrix.packed() if self.keeps else matrix
