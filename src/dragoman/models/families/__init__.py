"""The families of models that load, and which of them a config.json means.

Does: list and choose. Does not: read weights. Called by the loader and by whoever foretells what a model will take, on any
thread. A new family is a file here and a name in `FAMILIES`.
"""

from __future__ import annotations

from typing import Any

from dragoman.models.config import Config, ModelError
from dragoman.models.families.base import Family
from dragoman.models.families.lfm2 import Lfm2
from dragoman.models.families.llama import Llama

FAMILIES: tuple[type[Family], ...] = (Lfm2, Llama)

_BY_ARCHITECTURE = {name: family for family in FAMILIES for name in family.architectures}


def read_model(raw_config: dict[str, Any]) -> Family:
    """The model that a config.json describes.

    Raises: ModelError naming the architecture and the supported ones, or a key that is missing, wrong or not known.
    """
    config = Config(raw_config)
    names = config.value("architectures") or []
    family = next((_BY_ARCHITECTURE[name] for name in names if name in _BY_ARCHITECTURE), None)
    if family is None:
        raise ModelError(f"architectures {names!r} are not supported; supported: {', '.join(sorted(_BY_ARCHITECTURE))}")
    _refuse_packed(config)
    model = family(config)
    config.refuse_unread()
    return model


def _refuse_packed(config: Config) -> None:
    packed = config.part("quantization_config")
    if packed is not None:
        method = packed.value("quant_method", "unknown")
        raise ModelError(f"quantization_config quant_method {method!r} is not supported; use an unquantised checkpoint")
