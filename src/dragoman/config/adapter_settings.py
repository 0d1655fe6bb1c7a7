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
        "Merge the one adapter of option.lora into the weights while loading; it is then the model, at no cost.",
        open_to="load",
    )
    enable_lora: bool = option(
        False,
        Switch(),
        "Make room for adapters that come while the server runs, which costs memory and may change any linear layer; those "
        "in the folder adapters beside the model are there from the start.",
        open_to="load",
    )
    max_loras: int = option(
        4,  # LMI's default
        Integer(1, 64),
        "Adapters that option.enable_lora makes room for.",
        unit="adapters",
        open_to="load",
    )
    max_lora_rank: int | None = option(
        None,
        Integer(1, 1024, auto=True),
        "Largest rank of adapters that come while the server runs.",
        unset="16, or the largest of those at the start",
        open_to="load",
    )
    lora_store: Path | None = option(
        None,
        FilePath("DIRECTORY", "directory"),
        "Directory from which clients may have adapters loaded while the server runs.",
        unset="the folder adapters beside the model",
    )
