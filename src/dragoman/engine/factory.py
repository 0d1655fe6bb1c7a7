"""Engines by name: the protocol of engine factories, and their import. Imports little: loading begins here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
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

POOLING = "dragoman.engine.pooling:factory"
"""The address of the engine for models that embed or score texts."""

USUAL_RANK = 16  # vLLM's and LMI's default of max_lora_rank

ALLOWED = f"{', '.join(BUILT_IN)}, or module:factory"


def _no_progress(stage: str, fraction: float) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """The model that an engine is to run. `options`: the value of every option by its name, without secrets.

    `has_neighbours`: other models compute in this process at the same time. `progress` may raise to cancel the load; it
    is called on the loading thread. `given`: the names of the options that were set. `extra`: further settings for this
    engine, as texts; it checks their names. `machine_bytes`: all memory of this machine or container; None = unknown.
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
    """An engine, not started yet. `facts`: for people. `dtype`: of its weights. `pooling`: makes rows of `row_size`.

    `cache_bytes`: allocated besides its weights. `reads_tokenizer`: its grammars use llguidance's reading of
    tokenizer.json, which finds more control tokens. `adapters`: given if they can be loaded while it runs.
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
    def build(self, tools: EngineTools, memory_bytes: int) -> BuiltEngine:
        """The engine. `memory_bytes`: available besides its weights; it leaves some of this free.

        Raises: EngineOptionError. Called on a worker thread.
        """
        ...


class EngineFactory(Protocol):
    """Makes the engines of one kind. The object at `module:factory`; stateless, called on any thread."""

    def needs(self, setup: EngineSetup) -> MemoryNeeds:
        """The memory that the model will take, by the names, sizes and headers of its files.

        Raises: EngineOptionError; models.ModelError if the directory does not hold such a model; OSError.
        """
        ...

    def load(self, setup: EngineSetup) -> LoadedEngine:
        """The model, read and compiled; slow, begins on a separate thread before the server is imported.

        Raises: EngineOptionError; models.ModelError if the directory does not hold such a model.
        """
        ...


class EngineOptionError(ValueError):
    """The option `option` does not fit this model or engine; the message says which values do."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(problem)
        self.option = option

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.option, str(self))


def adapter_room(ranks: Sequence[int], max_loras: int, max_lora_rank: int | None) -> tuple[int, int]:
    """The number of adapters that have room at once, and their rank. `ranks`: of those in `lora`.

    Raises: EngineOptionError if these do not fit.
    """
    largest = max(ranks, default=0)
    if len(ranks) > max_loras:
        raise EngineOptionError("max_loras", f"must be at least {len(ranks)}, the number of adapters in lora")
    if max_lora_rank is not None and largest > max_lora_rank:
        problem = f"must be at least {largest}, the largest rank of the adapters in lora"
        raise EngineOptionError("max_lora_rank", problem)
    return max_loras, max_lora_rank or max(largest, USUAL_RANK)


def find_factory(name: str) -> EngineFactory:
    """The built-in factory of this name, or the one imported from the address `module:factory`.

    Raises: EngineOptionError for `option.engine`, on one line, if it does not exist.
    """
    module_name, _, attribute = BUILT_IN.get(name, name).partition(":")
    if not attribute:
        raise EngineOptionError("engine", f"must be {ALLOWED}")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a foreign module may raise anything while it is imported
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
