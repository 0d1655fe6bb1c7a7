"""Reads how a checkpoint's pictures are prepared. Called when a model is loaded, on any thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dragoman.files.model_texts import is_gguf, model_text
from dragoman.models.config import Config, ModelError, read_config, read_json

OWN_LAYOUT = "InternVLChatModel"
PLACEHOLDER, PLACEHOLDER_KEY = "<IMG_CONTEXT>", "img_context_token_id"


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


IMAGES, BOTH = "preprocessor_config.json", "processor_config.json"
NOT_DESCRIBED = f"there is no {IMAGES}, which says how pictures are prepared"
NO_DESCRIPTION = f"pictures are refused: {NOT_DESCRIBED}"

# Keys of processor_config.json that are not for pictures, or repeat the tokenizer's files.
_NOT_FOR_PICTURES = frozenset(
    ("auto_map", "chat_template", "feature_extractor", "processor_class", "tokenizer", "video_processor")
)


def is_described(model_dir: Path) -> bool:
    if is_gguf(model_dir):
        return model_text(model_dir, IMAGES) is not None
    return (model_dir / IMAGES).is_file() or (model_dir / BOTH).is_file() or _describes_itself(model_dir)


def read_described(model_dir: Path, changes: Mapping[str, Any] | None = None) -> Config:
    """`changes` count first, then the first file, then the second one's `image_processor`. Raises: ModelError."""
    images, both = model_dir / IMAGES, model_dir / BOTH
    beside: dict[str, Any] = read_json(both) if both.exists() else {}
    nested = beside.pop("image_processor", {})
    if not isinstance(nested, dict):
        raise ModelError(f"{both} image_processor is no object, allowed: an object")
    if images.exists() or not (nested or _describes_itself(model_dir)):
        nested = {**nested, **read_json(images)}  # it names the missing file in its error
    known = {key: value for key, value in beside.items() if key not in _NOT_FOR_PICTURES}
    return Config({**known, **nested, **(changes or {})}, BOTH if both.exists() and not images.exists() else IMAGES)


def _describes_itself(model_dir: Path) -> bool:
    path = model_dir / "config.json"
    return path.is_file() and is_own_layout(read_json(path))
