"""Reads from a checkpoint's small files how pictures stand in its prompts, for engines of other programs."""

from __future__ import annotations

import json
from pathlib import Path

from dragoman.models.config import ModelError
from dragoman.models.families import read_model
from dragoman.models.vision.base import PictureProcessor
from dragoman.models.vision.described import NOT_DESCRIBED, is_described, read_described, read_seeing_config


def read_picture_rules(model_dir: Path, changes: str = "{}") -> tuple[PictureProcessor, int]:
    """The processor, and the placeholder's id. `changes`: to preprocessor_config.json, as JSON. Raises: ModelError."""
    if not is_described(model_dir):
        raise ModelError(NOT_DESCRIBED)
    model = read_model(read_seeing_config(model_dir), sees=True)
    if model.vision is None:
        raise ModelError("the model takes text only")
    return model.vision.processor(read_described(model_dir, json.loads(changes))), model.vision.facts.placeholder_id
