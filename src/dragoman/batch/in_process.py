"""The application in this process, asked as uvicorn would ask it.

Does: carry one request through it, all of a server's way but sockets. Does not: build the application. Used on the event
loop.
"""

from __future__ import annotations

import asyncio

from dragoman.batch.requests import BatchError
from dragoman.batch.senders import USER_AGENT, Answer, Unreachable
from dragoman.engine.base import Engine
from dragoman.server.app import App
from dragoman.server.http.exchange import Message, Scope

SERVER_ERROR = 500


class AppSender:
    """Asks `app`, whose model `engine` runs. Implements `senders.Sender`."""

    def __init__(self, app: App, engine: Engine) -> None:
        self._app = app
        self._engine = engine

    async def send(self, path: str, body: bytes) -> Answer:
        """See `Sender`. Raises: BatchError if the engine is dead."""
        exchange = _Exchanged(body)
        try:
            await self._app(_scope(path, len(body)), exchange.receive, exchange.send)
        except ConnectionAbortedError as error:  # the answer broke off: see `Exchange.cut`
            raise Unreachable(str(error)) from error
        if exchange.status >= SERVER_ERROR:
            health = self._engine.health()
            if not health.is_alive:
                raise BatchError(f"the engine has died: {health.reason}")
        return Answer(exchange.status, exchange.headers, bytes(exchange.answer))

    def close(self) -> None:
        """Nothing: cancelling a call ends it."""


class _Exchanged:
    """The two sides of an ASGI call: the request's body in one piece, the answer put together."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 0
        self.headers: dict[str, str] = {}
        self.answer = bytearray()

    async def receive(self) -> Message:
        if self._body is None:
            await asyncio.Event().wait()  # a client that stays
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
        elif message["type"] == "http.response.body":
            self.answer += message.get("body", b"")


def _scope(path: str, num_bytes: int) -> Scope:
    fields = {"content-type": "application/json", "content-length": str(num_bytes), "user-agent": USER_AGENT}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
        "client": None,
        "server": None,
    }
