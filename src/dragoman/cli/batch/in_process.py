"""The application in this process, asked as uvicorn would ask it.

Does: carry one request through it, all of a server's way but sockets. Does not: build the application. Used on the event
loop.
"""

from __future__ import annotations

from dragoman.batch.requests import BatchError
from dragoman.batch.senders import USER_AGENT, Answer, Unreachable
from dragoman.engine.base import Engine
from dragoman.server.app import App
from dragoman.server.http.inner import InnerCall

SERVER_ERROR = 500


class AppSender:
    """Asks `app`, whose model `engine` runs. Implements `senders.Sender`."""

    def __init__(self, app: App, engine: Engine) -> None:
        self._app = app
        self._engine = engine

    async def send(self, path: str, body: bytes) -> Answer:
        """See `Sender`. Raises: BatchError if the engine is dead."""
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

    def close(self) -> None:
        """Nothing: cancelling a call ends it."""
