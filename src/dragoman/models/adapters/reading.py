"""Reads an adapter in either form: PEFT's directory, or a GGUF file. Called when an adapter is loaded, on any thread."""

from __future__ import annotations

from pathlib import Path

from dragoman.models.adapters.gguf import number_counts, read_gguf_adapter
from dragoman.models.adapters.low_rank import Adapter
from dragoman.models.adapters.peft import CONFIG, WEIGHTS, read_peft_adapter
from dragoman.models.config import ModelError
from dragoman.models.facts import ModelFacts

_SUFFIX = ".gguf"


def read_adapter(path: Path, facts: ModelFacts) -> Adapter:
    """The adapter at that path, for a model with these facts. Raises: ModelError."""
    file = gguf_file(path)
    return read_peft_adapter(path) if file is None else read_gguf_adapter(file, facts)


def gguf_file(path: Path) -> Path | None:
    """The GGUF file at the path, or in a directory without PEFT's files. Raises: ModelError if there are several."""
    if path.is_file():
        if path.suffix.lower() != _SUFFIX:
            raise ModelError(
                f"{path} is not an adapter, allowed: a directory with {CONFIG} and {WEIGHTS}, or a GGUF file"
            )
        return path
    if (path / CONFIG).is_file() or not path.is_dir():
        return None
    files = sorted(file for file in path.iterdir() if file.suffix.lower() == _SUFFIX and file.is_file())
    if len(files) > 1:
        named = ", ".join(file.name for file in files[:3]) + (", ..." if len(files) > 3 else "")
        raise ModelError(f"{path} holds {len(files)} GGUF files, allowed: one, or name the file: {named}")
    return files[0] if files else None


def most_numbers(path: Path) -> int:
    """The largest count of numbers that the adapter can have, without reading them. Raises: ModelError."""
    file = gguf_file(path)
    if file is not None:
        return sum(number_counts(file).values())
    weights = path / WEIGHTS
    return weights.stat().st_size // 2 if weights.is_file() else 0  # numbers have two bytes or more
