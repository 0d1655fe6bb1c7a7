"""Loads one configured model on a thread of its own, so that what else a start needs happens meanwhile.

Does: translate a configuration into a model's options, load, hand over the result or the failure, give up when
nobody wants it any more. Does not: know how a model is loaded (`models` does) or what is made of it (`compose` does). The
command line begins with it before it imports the server: compiling keeps one core busy, importing another. Imports little,
therefore.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from dragoman.config.resolve import WEIGHTS_CONFIG, Config, ConfigError
from dragoman.models import LoadedModel, ModelOptions, load_model

Progress = Callable[[str, float], None]  # stage name, fraction done in [0, 1]

DEFAULT_DTYPE = "int8"  # int4 is a sixth faster to decode but costs accuracy, which the operator should decide on


class ModelLoad:
    """The loading of a configuration's model, begun by making this. Its methods may be called on any thread."""

    def __init__(self, config: Config, progress: Progress, *, has_neighbours: bool = False) -> None:
        """`progress` is called on the loading thread. `has_neighbours`: other models compute in this process too."""
        self._config = config
        self._progress = progress
        self._has_neighbours = has_neighbours
        self._is_abandoned = False
        self._loaded: Future[LoadedModel] = Future()
        self._thread = threading.Thread(target=self._run, name="load-model")
        self._thread.start()

    @property
    def progress(self) -> Progress:
        """Where loading reports; for those who continue after it."""
        return self._progress

    def result(self) -> LoadedModel:
        """The loaded model, waiting for it. Raises: ModelError or ConfigError if the directory or an option does not fit."""
        return self._loaded.result()

    def abandon(self) -> None:
        """Stop as soon as may be; nothing happens if the model is loaded already."""
        self._is_abandoned = True

    def wait(self) -> None:
        """Return when the thread has ended, however it ended."""
        self._thread.join()

    def _run(self) -> None:
        try:
            options = model_options(self._config, has_neighbours=self._has_neighbours)
            self._loaded.set_result(load_model(self._config.model_dir, options, self._report))
        except BaseException as error:  # whoever asks for the result gets it
            self._loaded.set_exception(error)

    def _report(self, stage: str, fraction: float) -> None:
        if self._is_abandoned:
            raise LoadAbandoned
        self._progress(stage, fraction)


class LoadAbandoned(Exception):
    """Ends the loading of a model that nobody wants any more."""


def has_model(config: Config) -> bool:
    """True if the directory says that it holds a model, not only an operator's handler."""
    return (config.model_dir / WEIGHTS_CONFIG).is_file()


def model_options(config: Config, *, has_neighbours: bool = False) -> ModelOptions:
    """How the model of `config` is stored and run. Raises: ConfigError if its cache directory cannot be made."""
    model = config.model
    weight_type: Any = DEFAULT_DTYPE if model.dtype == "auto" else model.dtype  # the option's words are the loader's
    kv_type: Any = model.kv_dtype
    return ModelOptions(weight_type, kv_type, model.threads, _cache_dir(config), has_neighbours)


def _cache_dir(config: Config) -> Path | None:
    """The cache directory, made if need be; None if it is only the default and cannot be made.

    Raises: ConfigError if a directory that somebody named cannot be made.
    """
    path, origin = config.model.cache_dir, config.origins["cache_dir"]
    if path is None:
        return None
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if origin.source == "default":
            return None  # a read-only home, as containers have it: loading takes longer, nothing else
        raise ConfigError([f"{config.cite('cache_dir')}: must be a directory that can be made: {error}"]) from error
    return path
