"""Loads a model for adapters: with places for them, or with one merged into its matrices before these are compressed.

Called by the loader and the engine, which matches adapters with the model afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dragoman.models.adapters.files import Adapter, LowRank, read_adapter
from dragoman.models.adapters.inputs import AdapterInputs, AdapterPlace
from dragoman.models.config import ModelError, shown
from dragoman.models.facts import ModelFacts
from dragoman.models.families.base import Family
from dragoman.models.profile import AdapterOptions
from dragoman.models.sources.base import PackedMatrix, StoredTensor
from dragoman.models.weights import Adapting


class Change(NamedTuple):
    place: AdapterPlace
    matrices: LowRank


@dataclass(frozen=True, slots=True)
class ModelAdapters:
    """The places of a compiled graph for adapters, and the first adapters by their names. `row_bytes`: of one rank."""

    facts: ModelFacts
    names: ModuleNames
    places: tuple[AdapterPlace, ...]
    first: Mapping[str, Adapter]

    @property
    def row_bytes(self) -> int:
        return sum(place.row_bytes for place in self.places)

    def read(self, path: Path) -> Adapter:
        return read_adapter(path, self.facts)

    def changes(self, adapter: Adapter) -> tuple[Change, ...]:
        """The adapter's changes. Raises: ModelError if the model has no such place, or one of another shape."""
        places = {self.names.common(place.module): place for place in self.places}
        common = {self.names.common(module): module for module in adapter.modules}
        refuse_unknown(adapter, [module for name, module in common.items() if name not in places])
        for name, module in common.items():
            place = places[name]
            check_shapes(adapter, module, (place.parts[0].num_stored, place.num_columns))
        return tuple(Change(places[name], adapter.modules[module]) for name, module in common.items())


class AdapterPlan:
    def __init__(self, options: AdapterOptions, family: Family) -> None:
        self._options = options
        self._facts, self._names = family.facts, ModuleNames.of(family)
        self._adapters = {name: read_adapter(path, family.facts) for name, path in options.directories}
        self._targets = {
            self._names.common(module) for adapter in self._adapters.values() for module in adapter.modules
        }
        self.key = self._key()

    def adapting(self, *, computes_in_bf16: bool) -> AdapterInputs | MergedAdapter:
        if self._options.merges:
            (adapter,) = self._adapters.values()
            return MergedAdapter(adapter, self._names)
        return AdapterInputs(self._takes, computes_in_bf16=computes_in_bf16)

    def found(self, places: tuple[AdapterPlace, ...]) -> ModelAdapters | None:
        """The adapters of a compiled graph with these places; None if they are merged. Raises: ModelError."""
        if self._options.merges:
            return None
        adapters = ModelAdapters(self._facts, self._names, places, self._adapters)
        for adapter in self._adapters.values():
            adapters.changes(adapter)
        return adapters

    def _takes(self, module: str) -> bool:
        is_any = self._options.takes_more and self._names.is_in_layer(module)
        return is_any or self._names.common(module) in self._targets

    def _key(self) -> str:
        if not self._options.merges:
            wanted = [*sorted(self._targets), "and any" if self._options.takes_more else ""]
            return "adapters " + hashlib.sha256("\n".join(wanted).encode()).hexdigest()
        digest = hashlib.sha256()
        for adapter in self._adapters.values():
            for file in adapter.files:
                digest.update(file.read_bytes())
        return f"merged {digest.hexdigest()}"


def plan_adapters(options: AdapterOptions | None, family: Family) -> AdapterPlan | None:
    return None if options is None else AdapterPlan(options, family)


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


class MergedAdapter(Adapting):
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
