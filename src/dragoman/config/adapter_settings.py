"""The options about adapters, a part of the table in `options`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dragoman.config.kinds import FilePath, Integer, NamedDirectories, Switch
from dragoman.config.option import Alias, option


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """Adapters (LoRA)"""

    lora: tuple[str, ...] = option(
        (),
        NamedDirectories(),
        "Adapters that requests may ask for by name: directories as PEFT writes them, or GGUF files (see adapters.md).",
        unset="none",
        keys=(Alias("option.lora_modules"),),
    )
    merge_lora: bool = option(
        False,
        Switch(),
        "Merge the one adapter of option.lora into the weights while loading. It then costs nothing and cannot be "
        "switched off.",
        open_to="load",
    )
    enable_lora: bool = option(
        False,
        Switch(),
        "Reserve memory for adapters that are loaded while the server runs; they may change any linear layer. "
        "Adapters in the folder adapters beside the model are loaded at the start.",
        open_to="load",
    )
    max_loras: int = option(
        4,  # LMI's default
        Integer(1, 64),
        "Adapters that option.enable_lora reserves memory for.",
        unit="adapters",
        open_to="load",
    )
    max_lora_rank: int | None = option(
        None,
        Integer(1, 1024, auto=True),
        "Largest rank of adapters that are loaded while the server runs.",
        unset="16, or the largest rank loaded at the start",
        open_to="load",
    )
    lora_store: Path | None = option(
        None,
        FilePath("DIRECTORY", "directory"),
        "Directory that clients may load adapters from while the server runs.",
        unset="the folder adapters beside the model",
    )
