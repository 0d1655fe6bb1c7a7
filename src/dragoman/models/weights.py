"""The tensors of a model as its blocks ask for them: by names below a prefix, in parts, in the order that blocks want.

Used while a graph is built, on the thread that builds it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dragoman.models.config import ModelError
from dragoman.models.sources.base import Array, PackedMatrix, StoredTensor, WeightSource
from dragoman.models.sources.integers import below
from dragoman.models.storage.constants import Node, WeightStorage

Rows: TypeAlias = slice | Array


class Place(NamedTuple):
    """The place of a product's matrix in a checkpoint. `rows`: its rows among the `num_stored` of the tensor, in order."""

    name: str
    num_stored: int
    rows: Array


class Adapting:
    """The part of adapters in a graph, which changes nothing unless a subclass says so. `parameters`: its inputs."""

    parameters: Sequence[Any] = ()

    def merged(self, name: str, matrix: StoredTensor) -> StoredTensor:
        """The matrix [out, in] of that name as it is to be stored."""
        return matrix

    def added(self, y: Node, x: Node, place: Place) -> Node:
        """The product y of x [..., in] and the matrix at that place, with the adapters' part."""
        return y


class Weights:
    """A view of the tensors whose names begin with a prefix. `storage`: how a graph stores what is made of them."""

    def __init__(self, source: WeightSource, storage: WeightStorage, adapting: Adapting | None = None) -> None:
        self.storage = storage
        self.adapting = adapting
        self._source = source
        self._prefix = ""
        self._rows: Rows | None = None
        self._num_stored_rows = 0
        self._is_transposed = False
        self._stack: tuple[int, int] | None = None
        self._names: Mapping[str, str] = {}
        self._tied = ""
        self._read: set[str] = set()

    # --- views --------------------------------------------------------------------------------------------------------

    def at(self, name: str) -> Weights:
        view = copy(self)
        view._prefix = f"{self._prefix}{name}." if name else self._prefix
        return view

    def rows(self, rows: Rows, num_stored: int) -> Weights:
        """The view in which tensors have only these rows, in this order, of the `num_stored` of the tensor or view."""
        view = copy(self)
        if self._rows is None:
            view._rows, view._num_stored_rows = rows, num_stored
        else:
            view._rows = np.arange(self._num_stored_rows)[self._rows][rows]
        return view

    def transposed(self) -> Weights:
        view = copy(self)
        view._is_transposed = not self._is_transposed
        return view

    def stacked(self, index: int, num_stored: int) -> Weights:
        view = copy(self)
        view._stack = (index, num_stored)
        return view

    def careful(self) -> Weights:
        """The view of matrices whose error counts more, and which the format may store otherwise."""
        view = copy(self)
        view.storage = replace(self.storage, format=self.storage.format.careful)
        return view

    def renamed(self, **names: str) -> Weights:
        view = copy(self)
        view._names = names
        return view

    def tying(self, name: str) -> Weights:
        """The view in which the tensor of that name is the table of embeddings and the head's matrix, too."""
        view = copy(self)
        view._tied = name
        return view

    def root(self) -> Weights:
        view = copy(self)
        view._prefix = ""
        return view

    # --- what this view is ---------------------------------------------------------------------------------------------

    def name(self, name: str = "weight") -> str:
        return self._full(name)

    @property
    def is_whole(self) -> bool:
        return self._rows is None and self.is_as_stored

    @property
    def whole_name(self) -> str | None:
        """The name of the tensor that the view's matrix is; None if it is a part of one."""
        return self.name() if self.is_whole else None

    @property
    def is_tied(self) -> bool:
        return bool(self._tied) and self.whole_name == self._tied

    @property
    def is_as_stored(self) -> bool:
        return not self._is_transposed and self._stack is None

    # --- tensors ------------------------------------------------------------------------------------------------------

    def __contains__(self, name: str) -> bool:
        return self._full(name) in self._source

    def vector(self, size: int, name: str = "weight") -> Array:
        """f32 [size]. Raises: ModelError."""
        tensor = self._unstacked(name, (self._num_rows(size),))
        if isinstance(tensor, PackedMatrix):
            raise ModelError(f"tensor {self._full(name)!r} is packed, allowed: a vector of numbers")
        vector: Array = self._selected(tensor).astype(np.float32)
        return vector

    def matrix(self, num_rows: int, num_columns: int, name: str = "weight") -> StoredTensor:
        """[out, in] as it is stored, a view of its file where that is possible. Raises: ModelError."""
        shape = (self._num_rows(num_rows), num_columns)
        tensor: Any = self._unstacked(name, shape[::-1] if self._is_transposed else shape)
        if self._is_transposed and isinstance(tensor, PackedMatrix):
            raise ModelError(f"tensor {self._full(name)!r} is packed, allowed: numbers, as it is stored by columns")
        whole: StoredTensor = tensor.T if self._is_transposed else tensor
        if self.adapting is not None and self._stack is None:
            whole = self.adapting.merged(self._full(name), whole)
        matrix: StoredTensor = self._selected(whole)
        return matrix

    def adapted(self, y: Node, x: Node, num_rows: int) -> Node:
        """y, the product of x and this view's matrix of `num_rows` rows, with the adapters' part."""
        if self.adapting is None or self._stack is not None:
            return y
        num_stored = self._num_rows(num_rows)
        return self.adapting.added(y, x, Place(self._full("weight"), num_stored, self._selected(np.arange(num_stored))))

    def tensor(self, shape: tuple[int, ...], name: str = "weight") -> StoredTensor:
        """A tensor of any shape as it is stored, whatever rows this view selects. Raises: ModelError."""
        return self._tensor(name, shape)

    def skip(self, *names: str) -> None:
        self._read.update(self._full(name) for name in names)

    def skip_all(self) -> None:
        self._read.update(name for name in self._source if name.startswith(self._prefix))

    def refuse_unread(self, harmless: Sequence[str]) -> None:
        """Raises: ModelError naming tensors that were not read and match no pattern of `harmless`."""
        unread = [name for name in self._source if name not in self._read]
        unread = sorted(name for name in unread if not any(re.search(pattern, name) for pattern in harmless))
        if unread:
            shown = ", ".join(unread[:3]) + (", ..." if len(unread) > 3 else "")
            raise ModelError(f"the checkpoint has {len(unread)} tensors that this architecture does not know: {shown}")

    def _full(self, name: str) -> str:
        return self._prefix + self._names.get(name, name)

    def _unstacked(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        index, num_stored = self._stack or (0, 0)
        tensor = self._tensor(name, (num_stored, *shape) if self._stack else shape)
        if isinstance(tensor, PackedMatrix):
            if self._stack:
                raise ModelError(
                    f"tensor {self._full(name)!r} is packed, allowed: numbers, as it holds several matrices"
                )
            return tensor
        if tensor.dtype == np.uint8:
            raise ModelError(f"tensor {self._full(name)!r} has elements of type U8, allowed: floating-point numbers")
        part: Array = tensor[index] if self._stack else tensor
        return part

    def _tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        self._read.add(self._full(name))
        return self._source.tensor(self._full(name), shape)

    def _num_rows(self, selected: int) -> int:
        return selected if self._rows is None else self._num_stored_rows

    def _selected(self, tensor: Any) -> Any:
        return tensor if self._rows is None else tensor[self._rows]


def halves(weights: Weights, size: int) -> tuple[Weights, Weights]:
    """The two matrices of `size` rows that lie below each other in one tensor."""
    return weights.rows(slice(0, size), 2 * size), weights.rows(slice(size, 2 * size), 2 * size)


def can_be_joined(tensors: Sequence[StoredTensor]) -> bool:
    first = tensors[0]
    if isinstance(first, PackedMatrix):
        return all(isinstance(tensor, PackedMatrix) and tensor.is_stored_as(first) for tensor in tensors)
    return not any(isinstance(tensor, PackedMatrix) for tensor in tensors)


def joined(tensors: Sequence[StoredTensor]) -> StoredTensor:
    """Matrices below each other."""
    packed = [tensor for tensor in tensors if isinstance(tensor, PackedMatrix)]
    if not packed:
        return np.concatenate([np.asarray(tensor) for tensor in tensors])
    zero_points = [tensor.zero_points for tensor in packed if tensor.zero_points is not None]
    return replace(
        packed[0],
        values=below([tensor.values for tensor in packed]),
        scales=np.concatenate([tensor.scales for tensor in packed]),
        zero_points=np.concatenate(zero_points) if zero_points else None,
    )
