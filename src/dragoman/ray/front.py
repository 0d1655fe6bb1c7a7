"""The server deployment: the ASGI application that Serve runs in each replica of it, on the replica's event loop."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from dragoman.compose import ComposedModel, build_served_model, model_profile
from dragoman.host.reports import log_progress
from dragoman.host.settings import server_config
from dragoman.logs import hide_messages
from dragoman.ray.arguments import Application
from dragoman.server.apis import set_up_all
from dragoman.server.app import App, build_app
from dragoman.server.http.attempts import Attempts
from dragoman.server.http.exchange import Receive, Scope, Send
from dragoman.server.registry import ModelRegistry

logger = logging.getLogger("dragoman.ray")

_OF_THE_PROXY = frozenset({b"x-request-id"})
"""Serve's proxy has chosen the request's id, and writes it into every answer."""


class Front:
    def __init__(self, application: Application, engine_address: str) -> None:
        self._application = application
        self._engine_address = engine_address
        self._app: App | None = None
        self._attempts: Attempts | None = None
        self._composed: ComposedModel | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request, or live as long as the replica does."""
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        assert self._attempts is not None  # Serve sends no requests before
        return await self._attempts(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        try:
            await self._start()
        except Exception as error:  # start-up boundary: Serve reports any error and tries again
            logger.exception("loading failed")
            return await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown, after the replica's requests have drained
        await self._end()
        return await send({"type": "lifespan.shutdown.complete"})

    async def _start(self) -> None:
        config = await asyncio.to_thread(self._application.config)
        config = replace(config, engine=replace(config.engine, engine=self._engine_address))
        if not config.server.log_prompts:
            hide_messages()
        profile = model_profile(config)
        registry = ModelRegistry(set_up_all(profile), [config.name], profile)
        self._app = build_app(registry, server_config(config))
        self._attempts = Attempts(self._app, left_out=_OF_THE_PROXY)
        self._composed = await build_served_model(config, log_progress(config.name))
        registry.add(self._composed.served)
        registry.mark_ready()

    async def _end(self) -> None:
        if self._composed is not None:
            await self._composed.served.engine.shutdown(0.0)
            self._composed.close()
        if self._app is not None:
            await self._app.aclose()
