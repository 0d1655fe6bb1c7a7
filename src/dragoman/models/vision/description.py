"""Finds the files of a checkpoint that say how its pictures are prepared.

Does: find and merge them. Does not: understand them (processors do). Called by the loader, on any thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.models.config import Config, read_json

PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"


def read_description(model_dir: Path) -> Config | None:
    """What preprocessor_config.json says, and processor_config.json, which may hold it all; None if neither is there.

    Raises: ModelError if one of them cannot be read.
    """
    found: dict[str, Any] = {}
    names = [name for name in (PROCESSOR, PREPROCESSOR) if (model_dir / name).is_file()]
    for name in names:
        described = read_json(model_dir / name)
        images = described.pop("image_processor", None)
        found |= described
        if isinstance(images, dict):
            found |= images
    return Config(found, names[-1]) if names else None
