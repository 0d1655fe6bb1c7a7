"""Answers a batch by a model in this process, through its ASGI application, on the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.batch.requests import BatchError
from dragoman.batch.run import USER_AGENT, Answer, Unreachable
from dragoman.cli.local_app import local_app, local_model
from dragoman.cli.progress import ProgressDisplay
from dragoman.config.resolve import Config
from dragoman.engine.base import Engine
from dragoman.server.app import App
from dragoman.server.http.inner import InnerCall

SERVER_ERROR = 500


class AppSender:
    """Sends requests to `app`, whose model runs on `engine`. Raises: BatchError if the engine is dead."""

    def __init__(self, app: App, engine: Engine) -> None:
        self._app = app
        self._engine = engine

    async def send(self, path: str, body: bytes) -> Answer:
        call = InnerCall(path, body, {"user-agent": USER_AGENT})
        try:
            await self._app(call.scope, call.receive, call.send)
        except ConnectionAbortedError as error:  # the answer broke off: see `Exchange.cut`
            raise Unreachable(str(error)) from error
        if call.status >= SERVER_ERROR:
            health = self._engine.health()
            if not health.is_alive:
                raise BatchError(f"the engine has died: {health.reason}")
        return Answer(call.status, call.headers, bytes(call.answer))


@asynccontextmanager
async def app_sender(config: Config, display: ProgressDisplay) -> AsyncIterator[AppSender]:
    """A sender to the model of that configuration, which is loaded within the block. Raises: errors of loading."""
    async with local_model(config, display) as served:
        app = local_app(served, config.server)
        try:
            yield AppSender(app, served.engine)
        finally:
            await app.aclose()
