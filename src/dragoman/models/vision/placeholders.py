"""Finds the token that stands for a picture's embedding by its text, where config.json does not say it.

Reads the tokenizer's files without making a tokenizer. Called when a model is loaded, on any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dragoman.models.config import read_config, read_json

OWN_LAYOUT = "InternVLChatModel"
"""The architecture whose config.json leaves it out."""

PLACEHOLDER, PLACEHOLDER_KEY = "<IMG_CONTEXT>", "img_context_token_id"
"""Its token, and the key of config.json that may say the token's id."""


def read_seeing_config(model: Path) -> dict[str, Any]:
    """config.json, with the placeholder's id where a file of the tokenizer says it. Raises: ModelError."""
    raw_config = read_config(model)
    if not is_own_layout(raw_config) or raw_config.get(PLACEHOLDER_KEY) is not None:
        return raw_config
    found = next(_ids(model, PLACEHOLDER), None)
    return raw_config if found is None else raw_config | {PLACEHOLDER_KEY: found}


def is_own_layout(raw_config: dict[str, Any]) -> bool:
    names = raw_config.get("architectures")
    return isinstance(names, list) and OWN_LAYOUT in names


def _ids(model_dir: Path, text: str) -> Iterator[int]:
    """The ids of that token in the files, the small ones first."""
    yield from _known(_read(model_dir / "added_tokens.json").get(text))
    decoder = _read(model_dir / "tokenizer_config.json").get("added_tokens_decoder")
    for token_id, entry in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(entry, dict) and entry.get("content") == text and token_id.isdecimal():
            yield int(token_id)
    tokens = _read(model_dir / "tokenizer.json").get("added_tokens")
    for entry in tokens if isinstance(tokens, list) else ():
        if isinstance(entry, dict) and entry.get("content") == text:
            yield from _known(entry.get("id"))


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _known(value: Any) -> list[int]:
    return [value] if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else []
