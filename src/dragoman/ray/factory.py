"""The engine factory of a server on Ray Serve; its engine sends requests to the application's engine deployment."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncGenerator, Callable
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

_LOOK_S = 1.0  # between checks whether the load was cancelled
_NOBODY_KNOWS = 0.5  # share of the wait


@dataclass(frozen=True, slots=True)
class FoundDeployment:
    handle: DeploymentHandle
    description: Description
    why_unreachable: Callable[[], str] | None = None

    def build(self, tools: EngineTools, memory_bytes: int) -> BuiltEngine:
        found = self.description
        capabilities = replace(found.capabilities, cache_key=True)
        engine = (
            SpreadEngine(capabilities, self._send)
            if self.why_unreachable is None
            else WatchedEngine(capabilities, self._send, self.why_unreachable)
        )
        return BuiltEngine(engine, (*found.facts, "on replicas"), found.dtype, pictures=found.pictures)

    def _send(self, request: EngineRequest, avoided: tuple[str, ...]) -> Replies:
        # Outside the HTTP call's context: Serve treats calls with one context as one, and would mix up several prompts.
        return _replies(contextvars.Context().run(self.handle.generate.remote, request, avoided))


class ReplicaFactory:
    """Works inside a replica of a Serve application only."""

    def needs(self, setup: EngineSetup) -> MemoryNeeds:
        return MemoryNeeds(0)

    def load(self, setup: EngineSetup) -> FoundDeployment:
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
        progress("waiting for a replica", fraction)  # which may cancel the load
        fraction = _NOBODY_KNOWS
        with suppress(TimeoutError):
            description = telling.result(timeout_s=_LOOK_S)
    return FoundDeployment(handle.options(stream=True), description, why_unreachable)


factory = ReplicaFactory()


async def _replies(stream: Any) -> AsyncGenerator[EngineOutput | Failure, None]:
    """The outputs of a request. Closing this ends the request on its replica."""
    try:
        async for reply in stream:
            yield reply
    except BaseException as error:
        with suppress(Exception):  # Serve raises again the error of a request that it could not send
            stream.cancel()
        if isinstance(error, Exception) and _is_loss(error):
            raise ReplicaLost(f"{type(error).__name__}: {error}") from error
        raise


def _is_loss(error: Exception) -> bool:
    """True if the replica's process, machine or data is lost; False for an error of its code."""
    if isinstance(error, DeploymentUnavailableError):
        return True
    return isinstance(error, RayError) and not isinstance(error, RayTaskError | TaskCancelledError)
