"""Merges one adapter into a model's matrices while a graph is built, before these are compressed: W + B A in f32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dragoman.models.adapters.low_rank import Adapter
from dragoman.models.config import ModelError, shown
from dragoman.models.families.base import Family
from dragoman.models.sources.base import PackedMatrix, StoredTensor
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Place


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """The names of a family's modules. `bodies`: prefixes of the decoder, the longest first; `layers`: of its layers."""

    bodies: tuple[str, ...]
    layers: str

    @classmethod
    def of(cls, family: Family) -> ModuleNames:
        bodies = {f"{layout.body}." for layout in family.layouts if layout.body}
        return cls(tuple(sorted(bodies, key=len, reverse=True)), f"{family.layers}.")

    def common(self, module: str) -> str:
        """The name below the decoder's body, which is the same in all layouts."""
        return next((module.removeprefix(body) for body in self.bodies if module.startswith(body)), module)

    def is_in_layer(self, module: str) -> bool:
        return self.common(module).startswith(self.layers)


class MergedAdapter:
    parameters: Sequence[Any] = ()

    def __init__(self, adapter: Adapter, names: ModuleNames) -> None:
        self._changes = {names.common(module): (module, change) for module, change in adapter.modules.items()}
        self._names = names
        self._adapter = adapter
        self._merged: set[str] = set()

    def merged(self, name: str, matrix: StoredTensor) -> StoredTensor:
        """See `Adapting`. Raises: ModelError if shapes differ, or the matrix is packed."""
        common = self._names.common(name.removesuffix(".weight"))
        if common not in self._changes:
            return matrix
        module, change = self._changes[common]
        if isinstance(matrix, PackedMatrix):
            raise ModelError(f"tensor {name!r} is packed, allowed: numbers, to merge an adapter into it")
        check_shapes(self._adapter, module, matrix.shape)
        self._merged.add(common)
        numbers = np.asarray(matrix, dtype=np.float32)  # lazy rows are computed only here
        return np.asarray(numbers + change.up @ change.down)

    def adds_to(self, name: str) -> bool:
        return False

    def added(self, y: Node, x: Node, place: Place) -> Node:
        return y

    def refuse_unmerged(self) -> None:
        """Raises: ModelError if the model has no matrix for some of the modules."""
        refuse_unknown(self._adapter, [name for key, (name, _) in self._changes.items() if key not in self._merged])


def check_shapes(adapter: Adapter, module: str, shape: tuple[int, ...]) -> None:
    change = adapter.modules[module]
    has = (change.up.shape[0], change.down.shape[1])
    if has != tuple(shape):
        raise ModelError(
            f"{adapter.path}: the adapter changes a matrix {list(has)} in module {module!r}, "
            f"allowed: {list(shape)}, as the model's is"
        )


def refuse_unknown(adapter: Adapter, modules: Sequence[str]) -> None:
    if modules:
        named = ", ".join(shown(module)[1:-1] for module in modules[:3]) + (", ..." if len(modules) > 3 else "")
        raise ModelError(
            f"{adapter.path}: the adapter changes {len(modules)} modules that the model does not compute with "
            f"adapters: {named}; allowed: linear layers outside experts and towers"
        )
