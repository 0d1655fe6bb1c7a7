"""Loads a model for adapters, and matches adapters with it afterwards; called by the loader and the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dragoman.models.adapters.inputs import AdapterInputs, AdapterPlace
from dragoman.models.adapters.low_rank import Adapter, LowRank
from dragoman.models.adapters.merging import MergedAdapter, ModuleNames, check_shapes, refuse_unknown
from dragoman.models.adapters.options import AdapterOptions
from dragoman.models.adapters.reading import read_adapter
from dragoman.models.facts import ModelFacts
from dragoman.models.families.base import Family


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
