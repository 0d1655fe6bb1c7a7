"""Describes models by their files, for the lists of models in client APIs; lists those that could be loaded.

Leaves out values that cannot be read. Reads a model's files again only if its folder has changed. On worker threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from dragoman.config.entries import ModelEntry
from dragoman.config.run_time import ModelStore
from dragoman.errors import ModelError
from dragoman.files.model_texts import is_gguf, model_text
from dragoman.host.hosted import Wanted
from dragoman.models.config import read_config
from dragoman.models.ir.files import ir_files, is_ir
from dragoman.models.stored.opening import stored_weights
from dragoman.server.api import ModelCard
from dragoman.server.registry import UnloadedModel

_SAMPLE_BYTES = 1 << 16
_LICENSES = ("LICENSE", "LICENSE.txt", "LICENSE.md")


_State = tuple[str, int]


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


class Shelf:
    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._seen: dict[_State, UnloadedModel] = {}
        self._cards: dict[str, ModelCard] = {}  # of formerly loaded models, by name

    def models(self) -> tuple[UnloadedModel, ...]:
        """The models in the directory now. Called on worker threads, one at a time."""
        found: dict[_State, UnloadedModel] = {}
        for entry in self._store.entries():
            try:
                state = (entry.name, entry.directory.stat().st_mtime_ns)
            except OSError:  # just deleted
                continue
            found[state] = self._seen.get(state) or _unloaded(entry)
        self._seen = found
        return tuple(found.values())

    def note_card(self, name: str, card: ModelCard) -> None:
        self._cards[name] = card

    def dropped(self, wanted: Wanted) -> UnloadedModel:
        """The entry of a dropped model, which a call loads again."""
        card = self._cards.get(wanted.name, ModelCard())
        return UnloadedModel(wanted.name, wanted.names[1:], wanted.url, card)


def _unloaded(entry: ModelEntry) -> UnloadedModel:
    try:
        card = model_card(entry.directory)
    except (ModelError, OSError):  # loading reports the problem
        card = ModelCard()
    return UnloadedModel(entry.name, url=str(entry.directory), card=card)
