"""The adapters that a model is loaded with, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """Names and paths of the first adapters. `merges`: the only one is merged into the weights.

    `takes_more`: others may come while the model runs, for any linear layer.
    """

    directories: tuple[tuple[str, Path], ...] = ()
    merges: bool = False
    takes_more: bool = False
