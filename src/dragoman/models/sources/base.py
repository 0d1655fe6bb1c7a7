"""What every source of weights hands out: tensors by name, each as it is stored.

Does: define the forms of a stored tensor, and `WeightSource`. Does not: read files. Sources implement it; `weights` asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix in groups of columns that share a scale: `(values - zero_points) * scales`.

    Shapes: values u8 or i8 [out, in]; scales f16 or f32 [out, groups]; zero_points as values [out, groups], None = zero.
    `bits`: 8, or 4 where values and zero points lie in 0 to 15 (u8) or -8 to 7 (i8): a graph then holds two in a byte.
    """

    values: Array
    scales: Array
    zero_points: Array | None = None
    bits: int = 8

    @property
    def shape(self) -> tuple[int, ...]:
        """[out, in]."""
        rows, columns = self.values.shape
        return rows, columns

    @property
    def group_size(self) -> int:
        """The columns that share a scale."""
        return int(self.values.shape[1] // self.scales.shape[1])

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | Array) -> PackedMatrix:
        zero_points = None if self.zero_points is None else self.zero_points[rows]
        return PackedMatrix(self.values[rows], self.scales[rows], zero_points, self.bits)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        numbers = self.unpacked()
        return numbers if dtype is None else numbers.astype(dtype, copy=False)

    def unpacked(self) -> Array:
        """What it stands for, f32 [out, in]."""
        grouped = self.values.reshape(len(self.values), -1, self.group_size).astype(np.float32)
        if self.zero_points is not None:
            grouped -= self.zero_points[:, :, None]
        grouped *= self.scales[:, :, None].astype(np.float32)
        return grouped.reshape(self.shape)


StoredTensor: TypeAlias = Array | PackedMatrix


class WeightSource(Protocol):
    """The tensors of one model by their names."""

    def __contains__(self, name: str) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """The tensor, as it is stored.

        Raises: ModelError if it is missing, its shape is not `shape`, or its element type is none that a weight may have.
        """
        ...
