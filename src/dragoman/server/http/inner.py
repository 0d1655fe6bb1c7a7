"""A call that the process makes to itself, without a socket. Used for batches of requests, on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dragoman.server.http.exchange import Message, Scope


class InnerCall:
    """`POST path` with a JSON body, from a client that never leaves. `status` 0 = no answer yet."""

    def __init__(self, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        self._body: bytes | None = body
        fields = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        self.scope: Scope = {
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
