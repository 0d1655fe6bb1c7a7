"""Finds out how the weights of a model are stored, and opens them.

Does: find out from the headers of a model's files what they hold. Does not: read weights. Called by the loader and by
estimates of memory, once per start, on any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from dragoman.files.model_texts import is_gguf
from dragoman.models.sources.base import WeightSource
from dragoman.models.sources.safetensors import SafetensorsWeights


class StoredWeights(Protocol):
    """The weights of a model as they lie in files, told from headers alone."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold them."""
        ...

    @property
    def smallest_group(self) -> int | None:
        """The fewest columns that share a scale in any of the packed matrices; None = there are none."""
        ...

    @property
    def quantised(self) -> str | None:
        """The method by which they are quantised, in words; None = they are not."""
        ...

    @property
    def recompressed(self) -> tuple[str, ...]:
        """The quantised types that OpenVINO's kernels cannot read: their values are stored in another type."""
        ...

    def packed_bytes(self) -> Mapping[str, int]:
        """The bytes of each matrix that stays packed in a graph. Raises: ModelError."""
        ...

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor that a family may ask for. Raises: ModelError."""
        ...

    def open(self) -> AbstractContextManager[WeightSource]:
        """The tensors. Raises, when it is entered: ModelError."""
        ...


def stored_weights(model: Path, *, keeps_mxfp4: bool = False, keeps_rows: bool = False) -> StoredWeights:
    """The weights of the model at that path. `keeps_mxfp4`: matrices of MXFP4 are packed, in groups; else they are numbers.

    `keeps_rows`: kernels of our own read them: quantised matrices of GGUF files are their rows, and MXFP4 takes four bits.
    Raises: ModelError if there are none, or none that can be read.
    """
    if is_gguf(model):
        from dragoman.models.sources.gguf.weights import GgufWeights

        return GgufWeights(model, keeps_mxfp4=keeps_mxfp4, keeps_rows=keeps_rows)
    return SafetensorsWeights(model, keeps_mxfp4=keeps_mxfp4, keeps_rows=keeps_rows)
