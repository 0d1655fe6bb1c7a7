"""An adapter that has been read, whichever form its files have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.models.sources.base import Array


@dataclass(frozen=True, slots=True)
class LowRank:
    """An adapter's addition to one matrix: `up @ down`, the scale in `up`. Shapes: f32 [rank, in], f32 [out, rank]."""

    down: Array
    up: Array

    @property
    def rank(self) -> int:
        return len(self.down)


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter by the names of the modules it changes, as a checkpoint has them. `path`: as messages name it."""

    path: Path
    files: tuple[Path, ...]
    modules: Mapping[str, LowRank]

    @property
    def rank(self) -> int:
        return max(change.rank for change in self.modules.values())

    @property
    def num_bytes(self) -> int:
        return sum(change.down.nbytes + change.up.nbytes for change in self.modules.values())
