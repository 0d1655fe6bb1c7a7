"""Adapters of a checkpoint, one for each task that texts may be embedded for: Jina Embeddings 3.

Adds `mask * (x A) B` to products and rows of tables. Those of all tasks lie below each other; a token's row of the
mask is 1 in the columns of its task's `rank` rows. Used while a graph is built.
Source: arXiv:2409.10173; names of tensors as torch's parametrizations write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.nodes import add, gather_rows, multiply, width
from dragoman.models.config import ModelError
from dragoman.models.sources.base import Array, PackedMatrix, StoredTensor, WeightSource
from dragoman.models.storage.constants import Node, constant
from dragoman.models.weights import Adapting, Place, Weights

_STORED, _USUAL = ".parametrizations.weight.", ".weight."
_ORIGINAL = "original"


@dataclass(frozen=True, slots=True)
class PlainNames:
    """A checkpoint in which X.parametrizations.weight.original becomes X.weight, and its adapters X.weight.0.lora_A."""

    source: WeightSource

    def __contains__(self, name: str) -> bool:
        return self._stored(name) in self.source

    def __iter__(self) -> Iterator[str]:
        return (name.replace(_STORED, _USUAL).removesuffix(f".{_ORIGINAL}") for name in self.source)

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        return self.source.tensor(self._stored(name), shape)

    def _stored(self, name: str) -> str:
        if name.endswith(".weight"):
            parametrized = f"{name.removesuffix('.weight')}{_STORED}{_ORIGINAL}"
            return parametrized if parametrized in self.source else name
        return name.replace(_USUAL, _STORED)


@dataclass(frozen=True)
class TaskAdapters(Adapting):
    """`mask`: f32 [T, tasks * rank], an input of the texts. `weights`: the whole checkpoint's."""

    mask: Node
    weights: Weights
    num_tasks: int
    rank: int
    scale: float

    def _adds_to(self, name: str) -> bool:
        return f"{name}.0.lora_A" in self.weights

    def added(self, y: Node, x: Node, place: Place) -> Node:
        if not self._adds_to(place.name):
            return y
        down = self._numbers(place.name, "A", (self.rank, width(x))).reshape(-1, width(x))
        up = self._numbers(place.name, "B", (place.num_stored, self.rank))[:, place.rows]
        lowered = ops.matmul(x, constant(down), transpose_a=False, transpose_b=True).output(0)
        return self._raised(y, lowered, up.transpose(0, 2, 1).reshape(-1, len(place.rows)))

    def of_rows(self, y: Node, ids: Node | None, name: str, num_rows: int, size: int) -> Node:
        """Rows of a table of embeddings with the adapters' part; `ids` None: all are the first one."""
        if not self._adds_to(name):
            return y
        down = self._numbers(name, "A", (num_rows, self.rank)).transpose(1, 0, 2).reshape(num_rows, -1)
        up = self._numbers(name, "B", (self.rank, size)).reshape(-1, size)
        return self._raised(y, constant(down) if ids is None else gather_rows(constant(down), ids), up)

    def _raised(self, y: Node, lowered: Node, up: Array) -> Node:
        scaled = constant(np.ascontiguousarray(up * np.float32(self.scale)))
        product = ops.matmul(multiply(lowered, self.mask), scaled, transpose_a=False, transpose_b=False)
        return add(y, product.output(0))

    def _numbers(self, name: str, part: str, shape: tuple[int, int]) -> Array:
        stored = self.weights.tensor((self.num_tasks, *shape), f"{name}.0.lora_{part}")
        if isinstance(stored, PackedMatrix):
            raise ModelError(f"tensor {name}.0.lora_{part} is packed, allowed: numbers")
        return np.asarray(stored, dtype=np.float32)
