"""A replica of the model: the engine of `dragoman serve`, with requests from other processes. On its event loop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from ray import serve

from dragoman.compose import ComposedModel, build_served_model
from dragoman.engine.base import EngineStats, Health
from dragoman.engine.spread import Description, Failure
from dragoman.errors import ServerError
from dragoman.host.reports import log_progress
from dragoman.logs import hide_messages
from dragoman.ray.arguments import Application
from dragoman.types import EngineOutput, EngineRequest

logger = logging.getLogger("dragoman.ray")


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """One replica: its name in Serve's logs, its process, its engine's gauges and counters."""

    replica: str
    pid: int
    engine: Health
    stats: EngineStats


class EngineReplica:
    async def __init__(self, application: Application) -> None:  # type: ignore[misc]  # Serve awaits it
        """Raises: ConfigError, ModelError, EngineDead."""
        config = await asyncio.to_thread(application.config)
        if not config.server.log_prompts:
            hide_messages()
        # An operator's code handles texts, so it runs in the servers.
        config = replace(config, clients=replace(config.clients, hooks=False, output_formatter=None))
        self._name = serve.get_replica_context().replica_id.unique_id
        self._composed: ComposedModel = await build_served_model(config, log_progress(config.name))
        logger.info("replica %s runs %s (%s)", self._name, config.name, ", ".join(self._composed.facts))

    async def __call__(self, request: Any) -> Any:
        """The answer to Serve's proxy in an application without servers."""
        from starlette.responses import PlainTextResponse  # comes with Serve

        return PlainTextResponse("This application has engines alone: dragoman serve --engine ray answers\n", 404)

    async def describe(self) -> Description:
        served = self._composed.served
        return Description(served.engine.capabilities, self._composed.facts, served.dtype, self._composed.pictures)

    async def generate(self, request: EngineRequest, avoided: tuple[str, ...]) -> AsyncIterator[EngineOutput | Failure]:
        """The request's outputs, or the error that ended it. `avoided` is for the router."""
        async with aclosing(self._composed.served.engine.generate(request)) as outputs:
            try:
                async for output in outputs:
                    yield output
            except ServerError as error:
                yield Failure(error, self._name)

    async def health(self) -> ReplicaHealth:
        engine = self._composed.served.engine
        return ReplicaHealth(self._name, os.getpid(), engine.health(), engine.stats())

    async def check_health(self) -> None:
        """Raises: RuntimeError if the engine has died and does not recover; Serve then replaces the replica."""
        health = self._composed.served.engine.health()
        if not health.is_alive and not health.is_recovering:
            raise RuntimeError(f"the engine has died: {health.reason}")

    async def __del__(self) -> None:
        """Called by Serve when the replica's requests have drained."""
        composed = getattr(self, "_composed", None)
        if composed is not None:
            await composed.served.engine.shutdown(0.0)
            composed.close()
