"""The families of models that load, chosen by config.json. Called by the loader and by estimates of memory, on any thread.

A new family is a class here and a line in `architectures.FAMILIES`; a start imports only the one that it needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from dragoman.models.architectures import FAMILIES
from dragoman.models.config import Config, ModelError, shown
from dragoman.models.families.base import Family
from dragoman.models.sources.quantised import QUANTISATION_KEYS, read_layout
from dragoman.models.vision.base import PictureProcessor, VisionFamily
from dragoman.models.vision.described import NOT_DESCRIBED, is_described, read_described, read_seeing_config


def read_model(raw_config: dict[str, Any], *, sees: bool = False) -> Family:
    """The model that a config.json describes; `sees`: with its tower, if it has one and we know it.

    Raises: ModelError naming the architecture and the supported ones, or a key that is missing, wrong or not known.
    """
    config = Config(raw_config)
    names = config.value("architectures")
    known = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    served = next((name for name in known if name in FAMILIES), None)
    if served is None:
        supported = ", ".join(FAMILIES)
        raise ModelError(
            f"architectures {shown(names)} are not supported by the built-in engine (--engine vllm has others: "
            f"docs/vllm.md); supported: {supported}"
        )
    family = find_family(served)
    config.skip(*QUANTISATION_KEYS)
    read_layout(raw_config, getattr(family, "packings", ()))
    model = family(config)
    tower = _find_tower(served) if sees else None
    if tower is not None:
        try:
            model.see(tower(config, model.facts.hidden_size))
        except ModelError as error:
            raise ModelError(f"{error}; limit_mm_per_prompt image=0 serves its texts alone") from error
    config.refuse_unread()
    return model


def has_tower(raw_config: dict[str, Any]) -> bool:
    """True if a config.json that `read_model` reads is that of a model whose pictures are understood."""
    names = [name for name in raw_config["architectures"] if name in FAMILIES]
    return _find_tower(names[0]) is not None


def _find_tower(architecture: str) -> type[VisionFamily] | None:
    if not FAMILIES[architecture].startswith("vision."):
        return None
    from dragoman.models.families.vision import find_tower  # imports a dozen families

    return find_tower(architecture)


def read_picture_rules(model_dir: Path, changes: str = "{}") -> tuple[PictureProcessor, int]:
    """The processor, and the placeholder's id. `changes`: to preprocessor_config.json, as JSON. Raises: ModelError."""
    if not is_described(model_dir):
        raise ModelError(NOT_DESCRIBED)
    model = read_model(read_seeing_config(model_dir), sees=True)
    if model.vision is None:
        raise ModelError("the model takes text only")
    return model.vision.processor(read_described(model_dir, json.loads(changes))), model.vision.facts.placeholder_id


def find_family(architecture: str) -> Callable[[Config], Family]:
    module, _, name = FAMILIES[architecture].partition(".")
    family: Callable[[Config], Family] = getattr(import_module(f"{__name__}.{module}"), name)
    return family
