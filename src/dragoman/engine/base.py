"""The protocol every engine implements; all that the server half knows about engines.

Does: name what an engine can do and how it is driven. Does not: contain an engine. Called by the service, on the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from dragoman.types import EngineOutput, EngineRequest


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do, as data: the service refuses everything else up front, by name."""

    max_model_len: int  # prompt + completion tokens of one sequence
    vocab_size: int
    max_logprobs: int = 1_000
    prompt_logprobs: bool = True
    beam_search: bool = False
    best_of: bool = False
    grammar: bool = False
    speculative: bool = False  # a draft model or prompt lookup is loaded


@dataclass(frozen=True, slots=True)
class Health:
    """`is_alive` False = the engine is dead and `reason` says why. Counters are gauges at the time of the call."""

    is_alive: bool
    reason: str = ""
    num_running: int = 0
    num_waiting: int = 0
    num_used_blocks: int = 0
    num_blocks: int = 0


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """What an engine will take for a model, in bytes, told from configuration and file sizes before anything is loaded.

    `least_cache`: with less, no request of the model's context length could run. `useful_cache`: more would lie idle.
    """

    weights: int
    drafts: int = 0
    least_cache: int = 0
    useful_cache: int = 0

    @property
    def least(self) -> int:
        """The bytes without which the model cannot be loaded."""
        return self.weights + self.drafts + self.least_cache


class Engine(Protocol):
    """Runs requests. One instance serves one model."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def start(self) -> None:
        """Load what is left to load and start the engine's thread. Raises EngineDead if that fails."""
        ...

    def generate(self, request: EngineRequest) -> AsyncIterator[EngineOutput]:
        """Outputs of the request as they are made, until every sequence has finished.

        Closing the iterator (`aclose`) aborts the request and frees its blocks within a step.
        Raises: CapacityError (can never fit), EngineFailed, EngineDead.
        """
        ...

    def health(self) -> Health: ...

    async def shutdown(self, drain_s: float) -> None:
        """Wait up to `drain_s` seconds for running requests, abort the rest, stop the thread, release the runtime."""
        ...
