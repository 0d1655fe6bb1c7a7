"""A model in this process, behind a server's application without a port.

The model and its event loop run on a separate thread; calls come from the main thread, where Ctrl-C ends a wait.
"""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from dragoman.cli.local_app import local_app
from dragoman.cli.terminal.servers import AskFailed
from dragoman.compose import ComposedModel, build_served_model
from dragoman.config.resolve import Config
from dragoman.coroutines import LoopThread
from dragoman.engine.factory import Progress
from dragoman.server.app import App
from dragoman.server.http.protocol import CUT_EXTENSION

_BASE_PATH = "/v1"
_Message = MutableMapping[str, Any]
_END = None


class LocalAnswer:
    """An answer of the application. The constructor waits for the head. Raises: AskFailed if the call ends without one."""

    def __init__(self, app: App, scope: _Message, body: bytes, loop: asyncio.AbstractEventLoop) -> None:
        self._messages: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()
        self._loop = loop
        self._gone = asyncio.Event()
        self._body: bytes | None = body
        self._call = asyncio.run_coroutine_threadsafe(self._run(app, scope), loop)
        try:
            head = self._messages.get()
        except BaseException:
            self.close()
            raise
        if head is _END:
            raise AskFailed("the call ended without an answer")
        self.status = int(head["status"])

    def chunks(self) -> Iterator[bytes]:
        while (message := self._messages.get()) is not _END:
            if message["type"] == CUT_EXTENSION:
                raise AskFailed("the answer broke off")
            if message["type"] == "http.response.body":
                yield message.get("body", b"")

    def close(self) -> None:
        """Returns when the request has ended."""
        self._loop.call_soon_threadsafe(self._gone.set)
        self._call.exception()

    async def _run(self, app: App, scope: _Message) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            self._messages.put(_END)

    async def _receive(self) -> _Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: _Message) -> None:
        self._messages.put(message)


class LocalModel:
    """The model of a configuration; the constructor loads it. Raises: ConfigError, ModelError, EngineDead."""

    def __init__(self, config: Config, progress: Progress) -> None:
        self.model = config.name
        self._thread = LoopThread("dragoman-terminal")
        try:
            self._composed, self._app = self._thread.run(_built(config, progress))
        except BaseException:
            self._thread.close()
            raise
        self.tells_progress = self._composed.served.profile.tells_progress
        self.label = f"in this process ({', '.join(self._composed.facts)})"

    def send(self, path: str, body: Mapping[str, Any] | None = None) -> LocalAnswer:
        whole_path = _BASE_PATH + path
        scope: _Message = {
            "type": "http",
            "method": "GET" if body is None else "POST",
            "path": whole_path,
            "raw_path": whole_path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"accept", b"text/event-stream")],
            "extensions": {CUT_EXTENSION: {}},
        }
        return LocalAnswer(self._app, scope, b"" if body is None else json.dumps(body).encode(), self._thread.loop)

    def close(self) -> None:
        self._thread.run(self._composed.served.engine.shutdown(0.0))
        self._composed.close()
        self._thread.close()


async def _built(config: Config, progress: Progress) -> tuple[ComposedModel, App]:
    composed = await build_served_model(config, progress)
    return composed, local_app(composed.served, config.server)
