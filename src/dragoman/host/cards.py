"""Describes a model by its files, for the lists of models in client APIs. Leaves out values that cannot be read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from dragoman.errors import ModelError
from dragoman.files.model_texts import is_gguf, model_text
from dragoman.models.config import read_config
from dragoman.models.ir.files import ir_files, is_ir
from dragoman.models.sources.opening import stored_weights
from dragoman.server.api import ModelCard

_SAMPLE_BYTES = 1 << 16
_LICENSES = ("LICENSE", "LICENSE.txt", "LICENSE.md")


def model_card(model: Path) -> ModelCard:
    config = _config(model)
    files, num_parameters = _weights(model)
    stats = [(path, path.stat()) for path in files if path.is_file()]
    return ModelCard(
        format=_format(model) if stats else "",
        config=config,
        num_parameters=num_parameters,
        size_bytes=sum(stat.st_size for _, stat in stats),
        modified_s=max((stat.st_mtime for _, stat in stats), default=0.0),
        digest=_digest([path for path, _ in stats], config),
        license=_license(model),
    )


def _config(model: Path) -> Mapping[str, Any]:
    try:
        return read_config(model)
    except ModelError:
        return {}


def _weights(model: Path) -> tuple[tuple[Path, ...], int | None]:
    """The weight files, and the number of parameters in them, None where it cannot be counted."""
    try:
        if is_ir(model):
            return ir_files(model).all, None  # its graph has constants besides weights
        weights = stored_weights(model)
        return weights.files, sum(prod(shape) for shape in weights.shapes().values())
    except (ModelError, OSError):
        return (), None


def _format(model: Path) -> str:
    if is_gguf(model):
        return "gguf"
    return "openvino" if is_ir(model) else "safetensors"


def _digest(files: list[Path], config: Mapping[str, Any]) -> str:
    """A digest of names, sizes and beginnings: reading all of the weights takes minutes."""
    digest = hashlib.sha256(repr(sorted(config)).encode())
    for path in sorted(files):
        digest.update(f"\0{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _license(model: Path) -> str:
    for name in _LICENSES:
        try:
            text = model_text(model, name)
        except (ModelError, OSError, ValueError):
            continue
        if text:
            return text
    return ""
