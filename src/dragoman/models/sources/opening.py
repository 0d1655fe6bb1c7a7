"""Opens the weights of a model, in either kind of file. Called once per start, on any thread."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dragoman.files.model_texts import is_gguf
from dragoman.models.sources.safetensors import SafetensorsWeights

if TYPE_CHECKING:
    from dragoman.models.sources.gguf.weights import GgufWeights

StoredWeights: TypeAlias = "SafetensorsWeights | GgufWeights"
"""The weights of a model, told from headers alone."""


def stored_weights(model: Path, *, keeps_mxfp4: bool = False, keeps_rows: bool = False) -> StoredWeights:
    """The weights of the model at that path. `keeps_mxfp4`: matrices of MXFP4 stay packed; else they are numbers.

    `keeps_rows`: our kernels read quantised rows of GGUF files, and MXFP4 in four bits. Raises: ModelError.
    """
    if is_gguf(model):
        from dragoman.models.sources.gguf.weights import GgufWeights

        return GgufWeights(model, keeps_mxfp4=keeps_mxfp4, keeps_rows=keeps_rows)
    return SafetensorsWeights(model, keeps_mxfp4=keeps_mxfp4, keeps_rows=keeps_rows)
