"""Matrices of 4-bit floats in groups of 32 columns with a power of two each, as gpt-oss stores its experts.

Does: hand out their values, exactly, a part at a time. Does not: read files, or keep them in this form in a graph, where
its kernels are slow (docs/performance-log.md): the values are compressed like those of any other matrix.
Used by families, and by whoever foretells sizes; values are read on the storage's threads.
Source: OCP Microscaling Formats (MX) 1.0, section 5.3.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dragoman.models.config import ModelError
from dragoman.models.sources.base import Array

GROUP_SIZE = 32

_BLOCKS, _SCALES = "_blocks", "_scales"  # behind the name of a matrix: its two tensors

_CODES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=np.float32)
_VALUES = np.concatenate([_CODES, -_CODES])  # the highest of four bits is the sign
_PAIRS = np.stack([np.tile(_VALUES, 16), np.repeat(_VALUES, 16)], axis=1)  # of each byte: the low half is the first
_BIAS = 127
_LARGEST_SCALE = 252  # above it 6 times the power of two is no f32, and 255 is no number


class Mxfp4Matrix:
    """A matrix [out, in]; `np.asarray` of it or of a part has the values, f32.

    Shapes: blocks u8 [out, groups, 16], two values a byte; scales u8 [out, groups].
    """

    def __init__(self, blocks: Array, scales: Array) -> None:
        """Raises: ModelError if a scale is none."""
        if scales.size and scales.max() > _LARGEST_SCALE:
            raise ModelError(f"an MXFP4 scale is {scales.max()}, allowed: 0 to {_LARGEST_SCALE}")
        self._blocks, self._scales = blocks, scales

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in]."""
        rows, groups = self._scales.shape
        return rows, groups * GROUP_SIZE

    def __len__(self) -> int:
        return len(self._scales)

    def __getitem__(self, key: slice | Array | tuple[slice, slice]) -> Mxfp4Matrix:
        """These rows, or these rows and whole groups of columns."""
        if not isinstance(key, tuple):
            return Mxfp4Matrix(self._blocks[key], self._scales[key])
        begin, end, _ = key[1].indices(self.shape[1])
        assert begin % GROUP_SIZE == end % GROUP_SIZE == 0, "products are cut between groups"
        groups = (key[0], slice(begin // GROUP_SIZE, end // GROUP_SIZE))
        return Mxfp4Matrix(self._blocks[groups], self._scales[groups])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        exponents = self._scales.astype(np.int32)[:, :, None, None] - _BIAS
        values: Array = np.ldexp(_PAIRS[self._blocks], exponents).reshape(self.shape)
        return values if dtype is None else values.astype(dtype, copy=False)


def unpacked_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint by their names, with the matrices that blocks and scales stand for in their place."""
    unpacked = {}
    for name, shape in shapes.items():
        stem = name.removesuffix(_BLOCKS)
        if stem != name and stem + _SCALES in shapes:
            unpacked[stem] = (*shape[:-2], shape[-2] * GROUP_SIZE)
        elif name.removesuffix(_SCALES) + _BLOCKS not in shapes:
            unpacked[name] = shape
    return unpacked
