"""Engines by name: what makes one, and how it is found.

Does: define the protocol of factories and the values they are given, import the one that was chosen. Does not: know any
engine but by its address. Imports little: loading begins with it, before the server is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

from dragoman.engine.base import AdapterLoading, Engine, EngineTools, MemoryNeeds, PictureRules, TextPooling

Progress = Callable[[str, float], None]  # stage name, fraction done in [0, 1]

BUILT_IN: Mapping[str, str] = {
    "rolling": "dragoman.engine.rolling.factory:factory",
    "remote": "dragoman.engine.remote.factory:factory",
    "vllm": "dragoman.engine.vllm.factory:factory",
    "ray": "dragoman.ray.cluster:factory",
}
"""Short name -> address, for the engines that come with dragoman."""

POOLING = "dragoman.engine.pooling.factory:factory"
"""The address of the one that runs what the built-in engine would, of models that embed or score texts."""

ALLOWED = f"{', '.join(BUILT_IN)}, or module:factory"


def _no_progress(stage: str, fraction: float) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """The model that an engine is to run. `options`: the value of every option by its name, secrets excepted.

    `secrets`: the values of those secret options that are meant for engines.
    `has_neighbours`: other models compute in this process at the same time.
    Options that only an operator's own code knows are there as texts. `progress` may raise, to end a load that nobody
    wants any more; it is called on the thread that loads. `given`: the names of the options that were given a value.
    `extra`: what was given for this engine alone, by names that it has to make sense of, as texts.
    `machine_bytes`: all memory that this machine, or this container, has; None = it is not told.
    """

    model_dir: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    progress: Progress = _no_progress
    has_neighbours: bool = False
    given: frozenset[str] = frozenset()
    extra: Mapping[str, str] = field(default_factory=dict)
    machine_bytes: int | None = None

    def of_one_in(self, count: int) -> EngineSetup:
        """The setup for one of `count` engines that share the machine's memory."""
        return self if self.machine_bytes is None else replace(self, machine_bytes=self.machine_bytes // count)


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine, not started yet. `facts`: short descriptions for people. `dtype`: what its weights are.

    `cache_bytes`: what it has allocated, or will, besides its weights. `pictures`: of an engine that is capable of them.
    `reads_tokenizer`: its grammars go by what llguidance makes of the tokenizer.json, for which more is control tokens.
    `adapters`: of an engine whose adapters may come and go. `pooling`: of an engine that makes rows of texts, of `row_size`.
    """

    engine: Engine
    facts: tuple[str, ...] = ()
    dtype: str = ""
    cache_bytes: int = 0
    pictures: PictureRules | None = None
    adapters: AdapterLoading | None = None
    pooling: TextPooling | None = None
    row_size: int = 0
    reads_tokenizer: bool = False


class LoadedEngine(Protocol):
    """A model that was loaded, and becomes an engine once."""

    def build(self, tools: EngineTools, memory_bytes: int) -> BuiltEngine:
        """The engine. `memory_bytes`: what it may count on besides its weights, of which it leaves something to others.

        Raises: EngineOptionError. Called on a worker thread.
        """
        ...


class EngineFactory(Protocol):
    """Makes the engines of one kind. What `module:factory` names; has no state, called on any thread."""

    def needs(self, setup: EngineSetup) -> MemoryNeeds:
        """The memory that the model will take, by the names, sizes and headers of its files.

        Raises: EngineOptionError; models.ModelError if the directory holds no model of that kind; OSError.
        """
        ...

    def load(self, setup: EngineSetup) -> LoadedEngine:
        """The model, read and compiled. Takes long; begins before the server is imported, on a thread of its own.

        Raises: EngineOptionError; models.ModelError if the directory holds no model of that kind.
        """
        ...


class EngineOptionError(ValueError):
    """The option `option` does not go with this model or engine; the message says what it must be."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(problem)
        self.option = option

    def __reduce__(self) -> tuple[Any, ...]:
        """The parts to pickle."""
        return type(self), (self.option, str(self))


def find_factory(name: str) -> EngineFactory:
    """The factory of a built-in engine, or the one at the address `module:factory`, which is imported.

    Raises: EngineOptionError for `option.engine`, on one line, if there is none.
    """
    module_name, _, attribute = BUILT_IN.get(name, name).partition(":")
    if not attribute:
        raise EngineOptionError("engine", f"must be {ALLOWED}")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a foreign module raises while it is imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        problem = f"module {module_name} cannot be imported ({reason})"
        raise EngineOptionError("engine", f"{problem}; must be {ALLOWED}") from error
    factory = getattr(module, attribute, None)
    missing = [method for method in ("needs", "load") if not callable(getattr(factory, method, None))]
    if factory is None:
        raise EngineOptionError("engine", f"module {module_name} has no {attribute}; must be {ALLOWED}")
    if missing:
        problem = f"{attribute} in module {module_name} is no engine factory: it has no method {missing[0]}"
        raise EngineOptionError("engine", f"{problem}; must be {ALLOWED}")
    return cast(EngineFactory, factory)
