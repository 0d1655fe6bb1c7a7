"""The interface of every source of weights, and the forms of a stored tensor.

A form that is not what families ask for makes its parts without computing the whole.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


class LazyRows:
    """Rows that are computed when they are taken as an array: the file keeps them in another form."""

    dtype: np.dtype[Any] = np.dtype(np.float32)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """[out, in]; of stacks [..., out, in]."""

    @abstractmethod
    def values(self) -> Array: ...

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        values = self.values()
        return values if dtype is None else values.astype(dtype, copy=False)


class ComputedRows(LazyRows):
    """Rows that `compute` makes of `stored`, which has as many. `dtype`: of the values."""

    def __init__(
        self, stored: Array, num_columns: int, compute: Callable[[Array], Array], dtype: np.dtype[Any]
    ) -> None:
        self._stored, self._num_columns, self._compute, self.dtype = stored, num_columns, compute, dtype

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._stored), self._num_columns

    def __getitem__(self, rows: slice | Array) -> ComputedRows:
        return ComputedRows(self._stored[rows], self._num_columns, self._compute, self.dtype)

    def values(self) -> Array:
        return self._compute(self._stored)


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix in groups of columns that share a scale: `(values - zero_points) * scales`.

    Shapes: values u8 or i8 [out, in]; scales f16 or f32 [out, groups]; zero_points as values [out, groups], None =
    zero. `bits`: 8, or 4 where values lie in 0 to 15 (u8) or -8 to 7 (i8): a graph then holds two in a byte.
    `column_order`: for each column of `values` its column of the matrix, None = in order. As numbers the matrix has
    its columns in order; a product with the values takes the columns of the other factor in this order.
    """

    values: Any  # an array, or `LazyRows`
    scales: Array
    zero_points: Array | None = None
    bits: int = 8
    column_order: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        rows, columns = self.values.shape
        return rows, columns

    @property
    def num_groups(self) -> int:
        return int(self.scales.shape[1])

    @property
    def group_size(self) -> int:
        return int(self.values.shape[1] // self.num_groups)

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def __getitem__(self, rows: slice | Array) -> PackedMatrix:
        zero_points = None if self.zero_points is None else self.zero_points[rows]
        return replace(self, values=self.values[rows], scales=self.scales[rows], zero_points=zero_points)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        numbers = self.unpacked()
        return numbers if dtype is None else numbers.astype(dtype, copy=False)

    def unpacked(self) -> Array:
        """The numbers, f32 [out, in]; not finite where scales are absurd."""
        grouped = np.asarray(self.values).reshape(len(self), -1, self.group_size).astype(np.float32)
        if self.zero_points is not None:
            grouped -= self.zero_points[:, :, None]
        with np.errstate(over="ignore", invalid="ignore"):
            grouped *= self.scales[:, :, None].astype(np.float32)
        numbers = grouped.reshape(self.shape)
        if self.column_order is not None:
            numbers[:, self.column_order] = numbers.copy()
        return numbers

    def is_stored_as(self, other: PackedMatrix) -> bool:
        orders = (self.column_order, other.column_order)
        return (
            (self.bits, self.group_size, self.values.dtype) == (other.bits, other.group_size, other.values.dtype)
            and (self.zero_points is None) == (other.zero_points is None)
            and self.values.shape[1] == other.values.shape[1]
            and (is_order(*orders))
        )


def is_order(found: Array | None, order: Array | None) -> bool:
    """True if both are the same order of columns."""
    return found is order or (found is not None and order is not None and np.array_equal(found, order))


StoredTensor: TypeAlias = Array | PackedMatrix


class WeightSource(Protocol):
    def __contains__(self, name: str) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """The tensor, as it is stored. Raises: ModelError if it is missing, or its shape or type is not allowed."""
        ...


class Turned(LazyRows):
    """Matrices [..., out, in] that a checkpoint keeps [..., in, out]; `.T` of one gives it back."""

    def __init__(self, stored: Any) -> None:
        self._stored = stored

    @property
    def shape(self) -> tuple[int, ...]:
        *others, rows, columns = self._stored.shape
        return (*others, columns, rows)

    @property
    def T(self) -> Any:  # numpy's name
        return self._stored

    def __getitem__(self, index: int) -> Turned:
        return Turned(self._stored[index])

    def values(self) -> Array:
        return np.asarray(self._stored).swapaxes(-1, -2)


def with_columns(stored: Any, order: Array) -> Any:
    """A matrix with its columns in order; one that is packed stays so. `order`: where each lies in what is stored."""
    if isinstance(stored, PackedMatrix):
        return replace(stored, column_order=np.argsort(order))
    numbers: Array = np.asarray(stored)[:, order]
    return numbers


class Stack(LazyRows):
    """Matrices above each other, each made when it is read."""

    shape: tuple[int, ...] = ()

    def __init__(self, shape: tuple[int, ...], matrix: Callable[[int], Any]) -> None:
        self.shape = shape
        self._matrix = matrix

    def __getitem__(self, index: int) -> Any:
        return self._matrix(index)

    def values(self) -> Array:
        return np.stack([np.asarray(self._matrix(index)) for index in range(self.shape[0])])


class Joined(LazyRows):
    """The rows of two matrices of one shape, below each other or alternating; those of one come as that one is stored."""

    def __init__(self, parts: Sequence[Any], *, takes_turns: bool) -> None:
        self._parts, self._takes_turns = parts, takes_turns

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self._parts), self._parts[0].shape[1]

    def __getitem__(self, rows: slice | Array) -> Any:
        for index, part in enumerate(self._parts):
            if isinstance(rows, slice) and rows == self._slice(index):
                return part
        return np.asarray(self)[rows]

    def values(self) -> Array:
        arrays = [np.asarray(part).astype(np.float32, copy=False) for part in self._parts]
        return np.stack(arrays, axis=1).reshape(self.shape) if self._takes_turns else np.concatenate(arrays)

    def _slice(self, index: int) -> slice:
        if self._takes_turns:
            return slice(index, None, len(self._parts))
        begin = sum(part.shape[0] for part in self._parts[:index])
        return slice(begin, begin + self._parts[index].shape[0])
