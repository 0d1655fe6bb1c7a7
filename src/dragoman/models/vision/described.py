"""Reads how a checkpoint's pictures are prepared: preprocessor_config.json and processor_config.json as one object."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.files.model_texts import is_gguf, model_text
from dragoman.models.config import Config, ModelError, read_json
from dragoman.models.vision.placeholders import is_own_layout

IMAGES, BOTH = "preprocessor_config.json", "processor_config.json"
NOT_DESCRIBED = f"there is no {IMAGES}, which says how pictures are prepared"
NO_DESCRIPTION = f"pictures are refused: {NOT_DESCRIBED}"

# Of processor_config.json: parts for other things than pictures, and what the tokenizer's files say as well.
_NOT_FOR_PICTURES = frozenset(
    ("auto_map", "chat_template", "feature_extractor", "processor_class", "tokenizer", "video_processor")
)


def is_described(model_dir: Path) -> bool:
    if is_gguf(model_dir):
        return model_text(model_dir, IMAGES) is not None
    return (model_dir / IMAGES).is_file() or (model_dir / BOTH).is_file() or _describes_itself(model_dir)


def read_described(model_dir: Path, changes: Mapping[str, Any] | None = None) -> Config:
    """All that the files say of pictures, as one object.

    The first file counts before the second one's `image_processor`, and `changes` before both. Raises: ModelError.
    """
    images, both = model_dir / IMAGES, model_dir / BOTH
    beside: dict[str, Any] = read_json(both) if both.exists() else {}
    nested = beside.pop("image_processor", {})
    if not isinstance(nested, dict):
        raise ModelError(f"{both} image_processor is no object, allowed: an object")
    if images.exists() or not (nested or _describes_itself(model_dir)):
        nested = {**nested, **read_json(images)}  # which names the file that is missing
    known = {key: value for key, value in beside.items() if key not in _NOT_FOR_PICTURES}
    return Config({**known, **nested, **(changes or {})}, BOTH if both.exists() and not images.exists() else IMAGES)


def _describes_itself(model_dir: Path) -> bool:
    path = model_dir / "config.json"
    return path.is_file() and is_own_layout(read_json(path))
