"""The server deployment: the ASGI application that Serve runs in each replica of it.

Does: load the model's text side when Serve starts the replica, answer its HTTP requests, end with it. Does not: compute.
Called by Serve on the replica's event loop, by the lifespan and HTTP messages of ASGI.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from dragoman.compose import ComposedModel, build_served_model, model_profile
from dragoman.engine.spread import MAX_ATTEMPTS, losses
from dragoman.host.progress import log_progress
from dragoman.host.settings import server_config
from dragoman.ray.arguments import Application
from dragoman.server.apis import set_up_all
from dragoman.server.app import App, build_app
from dragoman.server.http.exchange import Message, Receive, Scope, Send
from dragoman.server.registry import ModelRegistry

logger = logging.getLogger("dragoman.ray")


class Front:
    """The ASGI callable of one replica."""

    def __init__(self, application: Application, engine_address: str) -> None:
        """`engine_address`: of the factory whose engine stands for the application's replicas."""
        self._application = application
        self._engine_address = engine_address
        self._app: App | None = None
        self._composed: ComposedModel | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request, or live as long as the replica does. Raises: ValueError for other protocols.

        A request whose replica is lost before the first byte of the answer is answered anew.
        """
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        assert self._app is not None  # Serve sends nothing before the start has ended
        body = _Body(receive)
        for number in range(MAX_ATTEMPTS):
            lost: list[str] = []
            losses.set(lost)
            attempt = _Attempt(send, body, lost, is_last=number == MAX_ATTEMPTS - 1)
            await self._app(scope, body.reader(), attempt.send)
            if not attempt.is_withheld:
                return None
        return None

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        try:
            await self._start()
        except Exception as error:  # start-up boundary: whatever it is, Serve tells it, and tries again
            logger.exception("loading failed")
            return await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown, after the replica's requests have drained
        await self._end()
        return await send({"type": "lifespan.shutdown.complete"})

    async def _start(self) -> None:
        config = await asyncio.to_thread(self._application.config)
        config = replace(config, engine=replace(config.engine, engine=self._engine_address))
        profile = model_profile(config)
        registry = ModelRegistry(set_up_all(profile), [config.name], profile)
        self._app = build_app(registry, server_config(config))
        self._composed = await build_served_model(config, log_progress(config.name))
        registry.add(self._composed.served)
        registry.mark_ready()

    async def _end(self) -> None:
        if self._composed is not None:
            await self._composed.served.engine.shutdown(0.0)
            self._composed.close()
        if self._app is not None:
            await self._app.aclose()


class _Body:
    """What came of one request's body, to be read again by a second attempt."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: list[Message] = []
        self.is_kept = True

    def reader(self) -> Receive:
        """The body from its beginning, then what comes after it."""
        left = list(self._kept)

        async def read() -> Message:
            if left:
                return left.pop(0)
            message = await self._receive()
            if self.is_kept:
                self._kept.append(message)
            return message

        return read

    def forget(self) -> None:
        """There will be no other attempt."""
        self.is_kept = False
        self._kept.clear()


class _Attempt:
    """One attempt's answer. It is withheld if it tells of a replica that was lost, unless that is the last attempt.

    Leaves out the request's id: Serve's proxy has chosen it, or taken it from the client, and writes it into every answer.
    """

    def __init__(self, send: Send, body: _Body, lost: list[str], *, is_last: bool) -> None:
        self._send = send
        self._body = body
        self._lost = lost
        self._is_last = is_last
        self.is_withheld = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_withheld = bool(self._lost) and message["status"] >= 500 and not self._is_last
            if self.is_withheld:
                return
            self._body.forget()
            headers = [(name, value) for name, value in message["headers"] if name != b"x-request-id"]
            message = {**message, "headers": headers}
        if not self.is_withheld:
            await self._send(message)
