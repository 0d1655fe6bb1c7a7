"""The protocol of the host for building a model, so that tests load models that cost nothing.

Does: define it. Does not: build; `compose` does, for the command line. Called by `ModelHost`.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from dragoman.config.resolve import Config
from dragoman.engine.base import MemoryNeeds
from dragoman.engine.factory import Progress
from dragoman.server.hosting import ModelMemory
from dragoman.server.registry import ServedModel


class BuiltModel(Protocol):
    """A model that answers. `memory`: what it takes, as far as that is known; None = as was estimated."""

    @property
    def served(self) -> ServedModel: ...

    @property
    def memory(self) -> ModelMemory | None: ...

    async def renew(self, progress: Progress) -> None:
        """Give the model another engine in the place of the one that has died; names, calls and options stay.

        Raises: what making one raises; then there is none, and this may be called again.
        """
        ...

    def give_up(self, reason: str) -> None:
        """There will be no other engine: calls are told why."""
        ...

    def close(self) -> None:
        """Let go of what is neither the engine's nor collected by itself; called after the engine's shutdown."""
        ...


Built = TypeVar("Built", bound=BuiltModel)
Built_co = TypeVar("Built_co", bound=BuiltModel, covariant=True)


class ModelBuilder(Protocol[Built_co]):
    """Builds models."""

    def needs(self, config: Config) -> MemoryNeeds:
        """The memory that the model will take, by its files, without loading them. Called on a worker thread.

        Raises: ConfigError or ModelError if the directory does not fit; OSError.
        """
        ...

    async def build(self, config: Config, progress: Progress, memory_bytes: int | None) -> Built_co:
        """The model, its engine started. `memory_bytes`: what it may count on besides its weights; None = what is free
        then.

        Raises: ConfigError or ModelError if the directory or an option does not fit; anything else is unexpected. A
        failed or cancelled build leaves nothing behind.
        """
        ...
