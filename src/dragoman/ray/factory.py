"""The engine factory of a server on Ray Serve: what it makes sends requests to the application's engine deployment.

Does: find the deployment's handle, ask a replica what the engine can do, translate Serve's errors. Does not: read a model.
Named by `application` in place of the operator's engine, which the replicas run; `cluster` finds deployments from outside.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ray import serve
from ray.exceptions import RayError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from dragoman.engine.base import EngineTools, MemoryNeeds
from dragoman.engine.factory import BuiltEngine, EngineSetup, Progress
from dragoman.engine.spread import Description, Failure, ReplicaLost, Replies, SpreadEngine
from dragoman.ray.arguments import ENGINE
from dragoman.ray.watched import WatchedEngine
from dragoman.types import EngineOutput, EngineRequest

ADDRESS = "dragoman.ray.factory:factory"

_LOOK_S = 1.0  # between looks whether anybody still wants the model
_NOBODY_KNOWS = 0.5  # how much of the wait is over


@dataclass(frozen=True, slots=True)
class FoundDeployment:
    """The engine deployment and what its replicas say of themselves. `why_unreachable`: see `find_deployment`."""

    handle: DeploymentHandle
    description: Description
    why_unreachable: Callable[[], str] | None = None

    def build(self, tools: EngineTools, memory_bytes: int) -> BuiltEngine:
        """The engine; the replicas have tools of their own."""
        found = self.description
        capabilities = replace(found.capabilities, cache_key=True)
        engine = (
            SpreadEngine(capabilities, self._send)
            if self.why_unreachable is None
            else WatchedEngine(capabilities, self._send, self.why_unreachable)
        )
        return BuiltEngine(engine, (*found.facts, "on replicas"), found.dtype, pictures=found.pictures)

    def _send(self, request: EngineRequest, avoided: tuple[str, ...]) -> Replies:
        # Outside the HTTP call's context: Serve takes calls with one context for one, and several prompts would be mixed up.
        return _HandleReplies(contextvars.Context().run(self.handle.generate.remote, request, avoided))


class ReplicaFactory:
    """See `EngineFactory`. Works inside a replica of a Serve application only."""

    def needs(self, setup: EngineSetup) -> MemoryNeeds:
        """Nothing: the weights are elsewhere."""
        return MemoryNeeds(0)

    def load(self, setup: EngineSetup) -> FoundDeployment:
        """The deployment, once one of its replicas has loaded the model. Blocks as long as that takes."""
        return find_deployment(serve.get_replica_context().app_name, setup.progress)


def find_deployment(
    application: str, progress: Progress, why_unreachable: Callable[[], str] | None = None
) -> FoundDeployment:
    """The engine deployment of that application, once one of its replicas has described itself.

    `why_unreachable`: for servers outside the application, which outlive it; see `WatchedEngine`.
    """
    handle = serve.get_deployment_handle(ENGINE, app_name=application)
    description: Description | None = None
    telling, fraction = handle.describe.remote(), 0.0
    while description is None:
        progress("waiting for a replica", fraction)  # which may end the load
        fraction = _NOBODY_KNOWS
        with suppress(TimeoutError):
            description = telling.result(timeout_s=_LOOK_S)
    return FoundDeployment(handle.options(stream=True), description, why_unreachable)


factory = ReplicaFactory()


class _HandleReplies:
    """The stream of a handle's call."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._is_cancelled = False

    def __aiter__(self) -> AsyncIterator[EngineOutput | Failure]:
        return self

    async def __anext__(self) -> EngineOutput | Failure:
        try:
            reply: EngineOutput | Failure = await anext(self._stream)
        except StopAsyncIteration:
            self._is_cancelled = True  # there is nothing left to cancel
            raise
        except asyncio.CancelledError:
            if self._is_cancelled:
                raise RuntimeError("the request was cancelled") from None
            raise
        except Exception as error:
            if _is_loss(error):
                raise ReplicaLost(f"{type(error).__name__}: {error}") from error
            raise
        return reply

    def cancel(self) -> None:
        if not self._is_cancelled:
            self._is_cancelled = True
            self._stream.cancel()


def _is_loss(error: Exception) -> bool:
    """True if the replica's process, its machine or what it sent is gone; not for what its code raised."""
    if isinstance(error, DeploymentUnavailableError):
        return True
    return isinstance(error, RayError) and not isinstance(error, RayTaskError | TaskCancelledError)
