"""Loads a model like the rolling engine, for evaluation."""

from __future__ import annotations

from dataclasses import replace

from dragoman.engine.factory import EngineSetup, Progress
from dragoman.engine.rolling.options import RollingOptions
from dragoman.models import LoadedModel, load_model

__all__ = ["LoadedModel", "load"]


def load(setup: EngineSetup, progress: Progress) -> LoadedModel:
    """The model, which reads texts only. Raises: ModelError."""
    options = RollingOptions.among(setup.options).model_options
    return load_model(setup.model_dir, replace(options, sees=False, takes_back=False), progress)
