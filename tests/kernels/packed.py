"""Random matrices in packed formats, and the numbers that they stand for."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  # numpy knows bfloat16 from it
import numpy as np
import numpy.typing as npt

from dragoman.kernels.graph import PlacedMatrix
from dragoman.kernels.native import FLOATS, Layout, Library, of_process

CODES = {"i4z": 16, "i4": 16, "i5": 32, "i8": 256}  # formats of groups, and how many codes each has


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed matrix. `weights`: the numbers that it stands for, f32 [outputs, columns]."""

    layout: Layout
    data: npt.NDArray[np.uint8]
    weights: npt.NDArray[np.float32]

    def placed(self, bias: Any = None) -> PlacedMatrix:
        """It in memory where operations find it."""
        return placed(self.layout, self.data, bias)


def placed(layout: Layout, data: npt.NDArray[np.uint8], bias: Any = None) -> PlacedMatrix:
    """Such bytes where operations find them."""
    memory = of_process(data.nbytes)
    memory.data[:] = data
    return PlacedMatrix(memory, layout, bias)


def random_matrix(kernels: Library, layout: Layout, seed: int = 0) -> Packed:
    """A matrix of random codes, scales and zero points, or of random numbers."""
    generator = np.random.default_rng(seed)
    if layout.format in FLOATS:
        numbers = generator.normal(size=(layout.outputs, layout.columns)).astype(FLOATS[layout.format])
        data = np.zeros(kernels.packed_bytes(layout), np.uint8)
        kernels.pack_floats(layout, 0, numbers, data)
        return Packed(layout, data, numbers.astype(np.float32))
    num_groups = -(-layout.columns // layout.group)
    codes = generator.integers(0, CODES[layout.format], (layout.outputs, layout.columns), dtype=np.uint8)
    scales = generator.uniform(0.01, 0.1, (layout.outputs, num_groups)).astype(np.float16)
    zeros = generator.integers(0, CODES[layout.format], (layout.outputs, num_groups), dtype=np.uint8)
    data = np.zeros(kernels.packed_bytes(layout), np.uint8)
    number, *sizes = kernels.words(layout)
    pack = kernels.entries.dragoman_pack_groups
    pack.argtypes = [ctypes.c_int32, *[ctypes.c_int64] * 5, *[ctypes.c_void_p] * 4]
    pack.restype = None
    pack(number, *sizes, 0, layout.outputs, *(array.ctypes.data for array in (codes, scales, zeros, data)))
    return Packed(layout, data, _meant(layout, codes, scales, zeros))


def _meant(
    layout: Layout, codes: npt.NDArray[np.uint8], scales: npt.NDArray[np.float16], zeros: npt.NDArray[np.uint8]
) -> npt.NDArray[np.float32]:
    group_of = np.arange(layout.columns) // layout.group
    values = codes.view(np.int8).astype(np.float32) if layout.format == "i8" else codes.astype(np.float32)
    offset = {"i4": 8, "i5": 16}.get(layout.format, 0)
    offsets = zeros[:, group_of].astype(np.float32) if layout.format == "i4z" else np.float32(offset)
    return np.asarray((values - offsets) * scales.astype(np.float32)[:, group_of], np.float32)
