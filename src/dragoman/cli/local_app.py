"""A model that a command loads into this process, its application without a port, and a sender of a batch to that.

Used on the commands' event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.batch.files import BatchError
from dragoman.batch.run import USER_AGENT, Answer, Unreachable
from dragoman.cli.progress import ProgressDisplay
from dragoman.compose import build_served_model
from dragoman.config.resolve import Config
from dragoman.config.server_options import ServerSettings
from dragoman.engine.base import Engine
from dragoman.server.app import App, ServerConfig, build_app
from dragoman.server.http.exchange import InnerCall
from dragoman.server.http.fields import Switches
from dragoman.server.registry import ModelRegistry, ServedModel

SERVER_ERROR = 500


@asynccontextmanager
async def local_model(config: Config, display: ProgressDisplay) -> AsyncIterator[ServedModel]:
    """The model, loaded within the block. Raises: errors of loading."""
    composed = await build_served_model(config, display)
    display.finish()
    try:
        yield composed.served
    finally:
        await composed.served.engine.shutdown(0.0)  # also writes pending prompts to the disk
        composed.close()


def registry_of(served: ServedModel) -> ModelRegistry:
    registry = ModelRegistry(served.dialects, profile=served.profile)
    registry.add(served)
    registry.mark_ready()
    return registry


def local_app(served: ServedModel, settings: ServerSettings) -> App:
    """A server's application with this model, without keys, since no other client can reach it."""
    switches = Switches(settings.strict, settings.timings, settings.keep_alive_seconds)
    return build_app(registry_of(served), ServerConfig(settings.max_request_size, switches=switches))


class AppSender:
    """Sends requests of a batch to `app`, whose model runs on `engine`. Raises: BatchError if the engine is dead."""

    def __init__(self, app: App, engine: Engine) -> None:
        self._app = app
        self._engine = engine

    async def send(self, path: str, body: bytes) -> Answer:
        call = InnerCall(path, body, {"user-agent": USER_AGENT})
        try:
            await self._app(call.scope, call.receive, call.send)
        except ConnectionAbortedError as error:  # the answer broke off: see `Exchange.cut`
            raise Unreachable(str(error)) from error
        answer = call.answer
        if answer.status >= SERVER_ERROR:
            health = self._engine.health()
            if not health.is_alive:
                raise BatchError(f"the engine has died: {health.reason}")
        return Answer(answer.status, answer.headers, answer.body)


@asynccontextmanager
async def app_sender(config: Config, display: ProgressDisplay) -> AsyncIterator[AppSender]:
    """A sender to the model of that configuration, which is loaded within the block. Raises: errors of loading."""
    async with local_model(config, display) as served:
        app = local_app(served, config.server)
        try:
            yield AppSender(app, served.engine)
        finally:
            await app.aclose()
