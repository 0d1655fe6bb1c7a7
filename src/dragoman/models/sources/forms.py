"""Tensors that a file holds in another form than families ask for; parts are made without computing the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dragoman.models.sources.base import Array, LazyRows, PackedMatrix


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
