"""An engine that sends each request to a replica, and to another one if that dies before it answers.

For replicas of Ray Serve and for memory nodes; on the event loop. A request is data with its seed, so that a second
replica gives the same answer as the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from dragoman.engine.base import MAX_ATTEMPTS, Capabilities, EngineStats, Health, PictureRules, losses
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
        """Raises: ReplicaLost; after `cancel`, any Exception."""
        ...

    def cancel(self) -> None:
        """End the request on the replica, if it still runs; does not wait. May be called again."""
        ...


Send = Callable[[EngineRequest, tuple[str, ...]], Replies]
"""Sends a request to a replica other than these."""


class SpreadEngine:
    """Runs requests on replicas, which have their own deadlines, limits and health."""

    def __init__(self, capabilities: Capabilities, send: Send) -> None:
        self._capabilities = replace(capabilities, progress=False)  # unused: the replicas know them
        self._send = send
        self._replies: dict[int, Replies] = {}  # by request, the current attempt
        self._num_started = 0  # of these, those with a first output
        self._num_tokens = 0
        self._next_number = 0
        self._death = "the engine was not started"
        self._refusal = ""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def start(self) -> None:
        if self._refusal:
            raise EngineDead(self._death)
        self._death = ""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """Raises also: EngineFailed if a replica was lost after the first output, or four before."""
        self.check(request)
        number, self._next_number = self._next_number, self._next_number + 1
        is_started = False
        avoided: list[str] = []
        refusal: Overloaded | None = None  # from the last replica tried
        self._idle.clear()
        try:
            for _ in range(MAX_ATTEMPTS):
                replies = self._replies[number] = self._send(request, tuple(avoided))
                try:
                    async for reply in replies:
                        if isinstance(reply, Failure):
                            avoided.append(reply.replica)
                            raise reply.error
                        if not is_started:
                            is_started = True
                            self._num_started += 1
                        self._num_tokens += len(reply.token_ids)
                        yield reply
                    return
                except Exception as error:  # a cancelled attempt may end in any way
                    self._check_not_cancelled(error)
                    if not _is_movable(error) or is_started:
                        raise _told(error) from error
                    refusal = error if isinstance(error, Overloaded) else None
                finally:
                    replies.cancel()
            if refusal is not None:
                raise refusal
            raise EngineFailed(f"{MAX_ATTEMPTS} replicas were lost one after another while running this request")
        finally:
            self._num_started -= is_started
            self._replies.pop(number, None)
            if not self._replies:
                self._idle.set()

    def check(self, request: EngineRequest) -> None:
        self._check_open()
        self._capabilities.check(request)

    def health(self) -> Health:
        """Alive while it accepts requests: dead replicas are replaced, and requests wait for them."""
        return Health(
            not self._death,
            self._death,
            num_running=self._num_started,
            num_waiting=len(self._replies) - self._num_started,
        )

    def stats(self) -> EngineStats:
        return EngineStats(num_generated_tokens=self._num_tokens)

    async def shutdown(self, drain_s: float) -> None:
        self._refusal = self._refusal or "The engine is shutting down"
        try:
            async with asyncio.timeout(drain_s):
                await self._idle.wait()
        except TimeoutError:
            pass
        self._death = "the engine was shut down"
        for replies in list(self._replies.values()):
            replies.cancel()

    def _check_open(self) -> None:
        if self._death:
            raise EngineDead(self._death)
        if self._refusal:
            raise Overloaded(self._refusal)

    def _check_not_cancelled(self, error: Exception) -> None:
        if self._death and not self._refusal:  # it died without a shutdown
            raise EngineDead(self._death) from error
        if self._death:
            raise Cancelled("The engine was shut down before the request finished") from error


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
