"""Loads one configured model on a separate thread, beside the other steps of a start.

Imports little: the load begins before the server's imports, as compiling keeps one core busy, importing another.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from dragoman.config.engine_options import OPTIONS, UpstreamSettings
from dragoman.config.resolve import WEIGHTS_CONFIG, Config, ConfigError
from dragoman.cores import applied, on_kernel_cores
from dragoman.engine.base import MemoryNeeds
from dragoman.engine.factory import (
    POOLING,
    EngineFactory,
    EngineOptionError,
    EngineSetup,
    LoadedEngine,
    Progress,
    find_factory,
)
from dragoman.files.model_texts import holds_model, is_gguf, see_with
from dragoman.files.ownership import own_directory
from dragoman.host.machine import MIB, all_memory_bytes, available_memory_bytes, in_mib
from dragoman.models.config import ModelError


class ModelLoad:
    """The loading of a configuration's model; the constructor starts it. Methods may be called on any thread.

    `progress` is called on the loading thread. `has_neighbours`: the process has other models, or may get some.
    `has_room`: the host has reserved memory; else the load checks before it reads. `num_nodes`: processes that run the
    model and share this machine's memory.
    """

    def __init__(
        self,
        config: Config,
        progress: Progress,
        *,
        has_neighbours: bool = False,
        has_room: bool = False,
        num_nodes: int = 1,
    ) -> None:
        self._has_neighbours = has_neighbours
        self._has_room = has_room
        self._num_nodes = num_nodes
        self._config = config
        see_with(config.model_dir, config.pictures.mmproj)  # for processes that did not read the options
        self._progress = progress
        self._is_abandoned = False
        self._last: tuple[str, float] | None = None
        self._watcher: Progress | None = None
        self._loaded: LoadedEngine | None = None
        self._failure: BaseException | None = None
        with suppress(EngineOptionError):  # the thread meets the error again, and reports it
            # Imported here: on the thread, beside the server's imports, it would take twice as long.
            factory_of(config)
        self._thread = threading.Thread(target=self._run, name="load-model")
        self._thread.start()

    def result(self) -> LoadedEngine:
        """The loaded model; waits for it. Raises: ModelError or ConfigError; RuntimeError the second time."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            raise RuntimeError("the loaded model was already handed over")
        return loaded

    def watch(self, progress: Progress) -> None:
        self._watcher = progress
        if self._last is not None:
            progress(*self._last)

    def abandon(self) -> None:
        """Stop as soon as possible; does nothing once the model is loaded."""
        self._is_abandoned = True

    def wait(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            with citing(self._config), on_kernel_cores():
                _check_seeing(self._config)
                factory = factory_of(self._config)
                shares = self._has_neighbours or not applied().is_tied
                setup = replace(engine_setup(self._config), progress=self._report, has_neighbours=shares)
                setup = setup.of_one_in(self._num_nodes)
                if not self._has_room:
                    check_room(self._config.name, factory.needs(setup), available_memory_bytes())
                self._loaded = factory.load(setup)
        except BaseException as error:  # `result` raises it
            self._failure = error

    def _report(self, stage: str, fraction: float) -> None:
        if self._is_abandoned:
            raise LoadAbandoned
        self._last = stage, fraction
        self._progress(stage, fraction)
        if self._watcher is not None:
            self._watcher(stage, fraction)


def _check_seeing(config: Config) -> None:
    file = config.pictures.mmproj
    if file is None:
        return
    if not is_gguf(config.model_dir):
        raise EngineOptionError("mmproj", "must be left out: only GGUF models have a separate mmproj file")
    if not file.is_file():
        raise EngineOptionError("mmproj", "must be an existing GGUF file on this machine")


class LoadAbandoned(Exception):
    """Ends the load of an unwanted model."""


def factory_of(config: Config) -> EngineFactory:
    """The factory of the model's engine; with the built-in engine, by the model's use. Raises: EngineOptionError."""
    is_generating = generates(config)
    factory = find_factory(config.engine.engine if is_generating else POOLING)
    if config.server.numa == "off":
        return factory
    from dragoman.nodes.engine import on_nodes  # most servers have one engine

    return on_nodes(config, factory, can_spread=is_generating and config.engine.engine == "rolling")


def generates(config: Config) -> bool:
    """True unless the built-in engine runs a model that embeds or scores texts. True if its files do not tell."""
    if config.engine.engine != "rolling":
        return True
    from dragoman.models.pooling.recipe import purpose_of  # imports the built-in engine

    try:
        return purpose_of(config.model_dir, cast(Any, config.model.task)) == "generate"
    except (ModelError, OSError, ValueError):
        return True  # loading reports the problem


def has_model(config: Config) -> bool:
    """True if the directory holds a model, not only an operator's handler."""
    return holds_model(config.model_dir)


def check_rolling(config: Config, why: str) -> None:
    """Raises: ConfigError with the reason `why` unless the rolling engine runs the model; ModelError without a model."""
    if config.engine.engine != "rolling":
        raise ConfigError([f"{config.cite('engine')}: must be rolling{why}"])
    if not has_model(config):
        raise ModelError(f"there is no model in {config.model_dir}")


def what_lacks(model_dir: Path) -> str:
    names = sorted(path.name for path in model_dir.iterdir()) if model_dir.is_dir() else []
    holds = f"it holds {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else "it is empty"
    return f"{model_dir} is not a model: there is neither {WEIGHTS_CONFIG} nor a GGUF file in it; {holds}"


def memory_needs(config: Config) -> MemoryNeeds:
    """The memory that the model will take, from its files. Raises: ModelError, ConfigError, OSError."""
    if not has_model(config):
        return MemoryNeeds(0)
    with citing(config):
        return factory_of(config).needs(engine_setup(config))


def missing_tokenizer(model_dir: Path) -> str:
    """The error for a directory without a tokenizer, one line; "" if it has one. Checked before the model is built."""
    if not (model_dir / WEIGHTS_CONFIG).is_file() or (model_dir / "tokenizer.json").is_file() or is_gguf(model_dir):
        return ""
    from dragoman.tokenizer.other_files import tokenizer_file  # few models have one of these

    try:
        tokenizer_file(model_dir)
    except ValueError as error:
        return str(error)
    return ""


def check_room(name: str, needs: MemoryNeeds, available_bytes: int) -> None:
    """Raises: ModelError with both numbers if a model with these needs does not fit into the available memory."""
    if needs.least > available_bytes:
        raise ModelError(
            f"model {name} does not fit into memory: it needs {in_mib(needs.least)}, of which {in_mib(needs.least_cache)} "
            f"are the smallest key/value cache (max_model_len and kv_cache_gb bound it), and {available_bytes // MIB} MiB "
            "are available"
        )


@contextmanager
def citing(config: Config) -> Iterator[None]:
    """Turns an engine's error about an option into ConfigError, with the option's value and source."""
    try:
        yield
    except EngineOptionError as error:
        raise ConfigError([f"{config.cite(error.option)}: {error}"]) from error


def engine_setup(config: Config) -> EngineSetup:
    """The setup for an engine's factory. Raises: ConfigError if the cache directory cannot be made."""
    options: dict[str, Any] = {
        **config.own_options,
        **{option.name: config.value(option) for option in OPTIONS if not option.row.is_secret},
        "cache_dir": _cache_dir(config),
        "threads": config.model.threads or applied().num_threads,
    }
    secrets = {
        option.name: str(value)
        for option in OPTIONS
        if option.row.is_secret and option.group is UpstreamSettings and (value := config.value(option)) is not None
    }
    given = frozenset(name for name, origin in config.origins.items() if origin.is_given)
    return EngineSetup(
        config.model_dir, options, secrets, given=given, extra=config.engine_options, machine_bytes=all_memory_bytes()
    )


def _cache_dir(config: Config) -> Path | None:
    """The cache directory, created if missing; None if the default one cannot be created. Raises: ConfigError."""
    path, origin = config.model.cache_dir, config.origins["cache_dir"]
    if path is None:
        return None
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        if origin.source == "default":
            return None  # a read-only home, as in containers: loads only take longer
        raise ConfigError([f"{config.cite('cache_dir')}: must be a directory that can be created: {error}"]) from error
    return path


def cache_note(config: Config) -> str:
    """A warning if built models cannot be kept because the default directory cannot be written; "" = they can."""
    path = config.model.cache_dir
    if path is None or config.origins["cache_dir"].is_given:
        return ""
    try:
        own_directory(path)
        if os.access(path, os.W_OK | os.X_OK):
            return ""
        reason = "Permission denied"
    except OSError as error:
        reason = error.strerror or str(error)
    return f"{path} cannot be used ({reason}): each start builds its model anew; --cache-dir names another directory"
