"""Finds out how the weights of a model are stored, and opens them.

Does: find out from the headers of a model's files what they hold. Does not: read weights. Called by the loader and by
estimates of memory, once per start, on any thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dragoman.files.model_texts import is_gguf
from dragoman.models.sources.safetensors import SafetensorsWeights

if TYPE_CHECKING:
    from dragoman.models.sources.gguf.weights import GgufWeights

StoredWeights: TypeAlias = "SafetensorsWeights | GgufWeights"
"""The weights of a model as they lie in files, told from headers alone."""


def stored_weights(model: Path, *, keeps_mxfp4: bool = False, keeps_rows: bool = False) -> StoredWeights:
    """The weights of the model at that path. `keeps_mxfp4`: matrices of MXFP4 are packed, in groups; else they are numbers.

    `keeps_rows`: kernels of our own read them: quantised matrices of GGUF files are their rows, and MXFP4 takes four bits.
    Raises: ModelError if there are none, or none that can be read.
    """
    if is_gguf(model):
        from dragoman.models.sources.gguf.weights import GgufWeights

        return GgufWeights(model, keeps_mxfp4=keeps_mxfp4, keeps_rows=keeps_rows)
    return SafetensorsWeights(model, keeps_mxfp4=keeps_mxfp4, keeps_rows=keeps_rows)
