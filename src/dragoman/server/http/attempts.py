"""Sends a request again if its replica was lost (`engine.base.losses`) before the first byte of its answer was sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dragoman.engine.base import MAX_ATTEMPTS, losses
from dragoman.server.http.exchange import Message, Receive, Scope, Send

Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Attempts:
    """An ASGI application in front of `app`. Drops the header fields `left_out` from answers."""

    def __init__(self, app: Application, left_out: frozenset[bytes] = frozenset()) -> None:
        self._app = app
        self._left_out = left_out

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _Body(receive)
        for number in range(MAX_ATTEMPTS):
            lost: list[str] = []
            losses.set(lost)
            attempt = _Attempt(send, body, lost, self._left_out, is_last=number == MAX_ATTEMPTS - 1)
            await self._app(scope, body.reader(), attempt.send)
            if not attempt.is_withheld:
                return


class _Body:
    """The received body of one request, kept so that a second attempt can read it."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: list[Message] = []
        self.is_kept = True

    def reader(self) -> Receive:
        """A reader that begins with the kept messages."""
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
        self.is_kept = False
        self._kept.clear()


class _Attempt:
    """The answer of one attempt. Withholds an answer that reports a lost replica, except in the last attempt."""

    def __init__(self, send: Send, body: _Body, lost: list[str], left_out: frozenset[bytes], *, is_last: bool) -> None:
        self._send = send
        self._body = body
        self._lost = lost
        self._left_out = left_out
        self._is_last = is_last
        self.is_withheld = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_withheld = bool(self._lost) and message["status"] >= 500 and not self._is_last
            if self.is_withheld:
                return
            self._body.forget()
            headers = [(name, value) for name, value in message["headers"] if name not in self._left_out]
            message = {**message, "headers": headers}
        if not self.is_withheld:
            await self._send(message)
