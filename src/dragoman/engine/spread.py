"""An engine that sends each request to a replica, and to another one if that dies before it answers.

For replicas of Ray Serve and for memory nodes; on the event loop. A request is data with its seed, so that a second
replica gives the same answer as the first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from dragoman.engine.base import (
    MAX_ATTEMPTS,
    Capabilities,
    EngineStats,
    Health,
    PictureRules,
    Take,
    losses,
)
from dragoman.engine.life import Delivering, Enough, OnLoop, Put
from dragoman.errors import Cancelled, EngineDead, EngineFailed, Overloaded, QueueTimeout, ServerError
from dragoman.types import EngineOutput, EngineRequest

MOVABLE = (EngineDead, Overloaded, Cancelled)
"""Errors of a replica, not of the request: another replica may run it."""


@dataclass(frozen=True, slots=True)
class Description:
    capabilities: Capabilities
    facts: tuple[str, ...]
    dtype: str
    pictures: PictureRules | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Sent in place of an output: the request ended with `error` on `replica`."""

    error: ServerError
    replica: str


class ReplicaLost(Exception):
    """The replica is gone or unreachable, with everything that it computed."""


class Replies(Protocol):
    """The messages of a replica for one request."""

    def __aiter__(self) -> AsyncIterator[EngineOutput | Failure]: ...

    def __anext__(self) -> Awaitable[EngineOutput | Failure]:
        """Raises: ReplicaLost."""
        ...

    async def aclose(self) -> None:
        """End the request on the replica, if it still runs; does not wait."""
        ...


Send = Callable[[EngineRequest, tuple[str, ...]], Replies]
"""Sends a request to a replica other than these."""


class SpreadEngine(Delivering):
    """Runs requests on replicas, which have their own deadlines, limits and health."""

    def __init__(self, capabilities: Capabilities, send: Send) -> None:
        self._capabilities = replace(capabilities, progress=False)  # unused: the replicas know them
        self._send = send
        self._life = OnLoop()
        self._life.refusal = "The engine is shutting down"
        self._num_started = 0  # requests with a first output

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def start(self) -> None:
        if self._life.is_draining:
            raise EngineDead(self._life.death)
        self._life.death = ""

    async def deliver(self, request: EngineRequest, take: Take) -> None:
        """Raises also: EngineFailed if a replica was lost after the first output, or four before."""
        self.check(request)
        await self._life.run(request, take, partial(self._spread, request))

    def check(self, request: EngineRequest) -> None:
        self._life.check_open()
        self._capabilities.check(request)

    def health(self) -> Health:
        """Alive while it accepts requests: dead replicas are replaced, and requests wait for them."""
        death, num_started = self._life.death, self._num_started
        num_waiting = self._life.num_requests - num_started
        return Health(not death, death, num_running=num_started, num_waiting=num_waiting)

    def stats(self) -> EngineStats:
        return EngineStats(num_generated_tokens=self._life.num_tokens)

    async def shutdown(self, drain_s: float) -> None:
        await self._life.finish(drain_s, "The engine was shut down before the request finished")

    async def _spread(self, request: EngineRequest, put: Put) -> None:
        is_started = False
        avoided: list[str] = []
        refusal: Overloaded | None = None  # from the last replica tried
        try:
            for _ in range(MAX_ATTEMPTS):
                replies = self._send(request, tuple(avoided))
                try:
                    async with aclosing(replies):
                        async for reply in replies:
                            if isinstance(reply, Failure):
                                avoided.append(reply.replica)
                                raise reply.error
                            if not is_started:
                                is_started = True
                                self._num_started += 1
                            put(reply)
                    return
                except Enough:
                    raise
                except Exception as error:
                    if not _is_movable(error) or is_started:
                        raise _told(error) from error
                    refusal = error if isinstance(error, Overloaded) else None
            if refusal is not None:
                raise refusal
            raise EngineFailed(f"{MAX_ATTEMPTS} replicas were lost one after another while running this request")
        finally:
            self._num_started -= is_started


def _is_movable(error: Exception) -> bool:
    return isinstance(error, (ReplicaLost, *MOVABLE)) and not isinstance(error, QueueTimeout)  # it may wait no longer


def _told(error: Exception) -> ServerError:
    """A replica's death is only a failure for the client, as this engine lives on."""
    if _is_movable(error):
        noted = losses.get()
        if noted is not None:
            noted.append(str(error))
        return EngineFailed("The replica that ran this request was lost before the answer was complete")
    if isinstance(error, ServerError):
        return error
    return EngineFailed(f"The replica could not run this request: {type(error).__name__}: {error}")
