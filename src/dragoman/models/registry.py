"""Maps config.json's "architectures" to the builder of that family.

Does: one table. Does not: read files. Called by models.loader. A new family is one row here and one file beside llama.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dragoman.models.config import LlamaConfig, ModelError, parse_llama_config
from dragoman.models.llama import LlamaBuilder


@dataclass(frozen=True, slots=True)
class Family:
    """How one architecture is read and built."""

    parse_config: Callable[[dict[str, Any]], LlamaConfig]
    builder: type[LlamaBuilder]


FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(parse_llama_config, LlamaBuilder),
}


def family_for(raw_config: dict[str, Any]) -> Family:
    """The family that serves this config.json. Raises: ModelError naming the architecture and the supported ones."""
    names = raw_config.get("architectures") or []
    for name in names:
        if name in FAMILIES:
            return FAMILIES[name]
    raise ModelError(f"architectures {names!r} are not supported; supported: {', '.join(sorted(FAMILIES))}")
