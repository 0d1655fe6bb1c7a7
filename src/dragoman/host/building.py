"""The host's protocols for building a model, so that tests can load cheap ones; `compose` implements them."""

from __future__ import annotations

from typing import Protocol, TypeVar

from dragoman.config.resolve import Config
from dragoman.engine.base import MemoryNeeds
from dragoman.engine.factory import Progress
from dragoman.server.hosting import ModelMemory
from dragoman.server.registry import ServedModel


class BuiltModel(Protocol):
    """A model with a running engine. `memory`: its known size; None = the estimate holds."""

    @property
    def served(self) -> ServedModel: ...

    @property
    def memory(self) -> ModelMemory | None: ...

    async def renew(self, progress: Progress) -> None:
        """Replace the model's dead engine. Raises: the error of the attempt; this may then be called again."""
        ...

    def give_up(self, reason: str) -> None:
        """Note that no other engine follows; calls get the reason."""
        ...

    def close(self) -> None:
        """Free resources outside the engine; called after the engine's shutdown."""
        ...


Built = TypeVar("Built", bound=BuiltModel)
Built_co = TypeVar("Built_co", bound=BuiltModel, covariant=True)


class ModelBuilder(Protocol[Built_co]):
    def needs(self, config: Config) -> MemoryNeeds:
        """The model's memory, estimated from its files; on a worker thread. Raises: ConfigError, ModelError, OSError."""
        ...

    async def build(self, config: Config, progress: Progress, memory_bytes: int | None) -> Built_co:
        """The model with a started engine. `memory_bytes`: its memory besides the weights; None = what is free then.

        Raises: ConfigError or ModelError; other errors are defects. A failed or cancelled build leaves nothing behind.
        """
        ...
