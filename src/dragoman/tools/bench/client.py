"""A small HTTP/1.1 client for measurements: a parser in C, one time stamp per read of the socket, reused connections.

`Target` has the parts of a server's URL, and the paths of APIs below it.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

_PORTS = {"http": 80, "https": 443}
_VERSION = re.compile(r"/v[0-9]+")  # the first segment of an OpenAI API's path: /v1 on most servers, /v3 on OpenVINO's
ALLOWED = "http://HOST:PORT or https://HOST, perhaps with a path, without a user and a query"


@dataclass(frozen=True, slots=True)
class Target:
    """A server. `path`: of the URL without a final slash, "" = none."""

    host: str
    port: int
    is_secure: bool
    path: str = ""

    @property
    def origin(self) -> str:
        return f"{'https' if self.is_secure else 'http'}://{self.netloc}"

    @property
    def netloc(self) -> str:
        """Host and port in the form of the header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def endpoint(self, path: str) -> str:
        """The path of an operation on this server. A version in the URL replaces its own: /v3 and /v1/chat make
        /v3/chat.
        """
        if self.path.endswith(path):
            return self.path
        version = _VERSION.match(path)
        if version is not None and _VERSION.fullmatch("/" + self.path.rpartition("/")[2]):
            return self.path + path[version.end() :]
        return self.path + path

    def models_path(self, path: str) -> str | None:
        """The path of the model list of a server with OpenAI's API at `path`; None if `path` has no version in it."""
        found = list(_VERSION.finditer(path))
        return f"{path[: found[-1].end()]}/models" if found else None


def read_target(url: str) -> Target:
    """The target at `url`. Raises: ValueError with what is allowed."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"must be {ALLOWED}") from None
    is_plain = not (parts.query or parts.fragment or parts.username is not None)
    if parts.scheme not in _PORTS or not parts.hostname or not is_plain or port == 0:
        raise ValueError(f"must be {ALLOWED}")
    return Target(parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "https", parts.path.rstrip("/"))


class BrokenOff(ConnectionError):
    """The server closed the connection before the end of an answer."""


class NotHttp(ValueError):
    """The server sent something other than HTTP."""


class Receiver(Protocol):
    """Receives the answer to a request. `headers`: names in lower case. `now_s`: on the clock `perf_counter`."""

    def begin(self, status: int, headers: Mapping[str, str]) -> None: ...

    def feed(self, data: bytes, now_s: float) -> None: ...


class Collected:
    """Keeps a whole answer. `status` 0 = none yet."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.body = b""

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers

    def feed(self, data: bytes, now_s: float) -> None:
        self.body += data


class HttpClient:
    """Sends requests to one server. `resent`: counts those whose reused connection the server had closed."""

    def __init__(self, target: Target, headers: Mapping[str, str]) -> None:
        self._target = target
        self._headers = {"host": target.netloc, "accept": "*/*", "user-agent": "dragoman-bench"} | {
            name.lower(): value for name, value in headers.items()
        }
        self.resent = 0
        self._idle: list[_Connection] = []
        self._tls = ssl.create_default_context() if target.is_secure else None

    async def post(self, path: str, body: bytes, receiver: Receiver) -> None:
        """Send a JSON body and hand the answer to `receiver`. Raises: OSError, BrokenOff, NotHttp."""
        await self._send(
            self._head("POST", path, f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"),
            body,
            receiver,
        )

    async def get(self, path: str) -> Collected:
        answer = Collected()
        await self._send(self._head("GET", path, ""), b"", answer)
        return answer

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _head(self, method: str, path: str, more: str) -> bytes:
        lines = "".join(f"{name}: {value}\r\n" for name, value in self._headers.items())
        return f"{method} {path or '/'} HTTP/1.1\r\n{lines}{more}\r\n".encode()

    async def _send(self, head: bytes, body: bytes, receiver: Receiver) -> None:
        while self._idle:
            kept = self._idle.pop()
            try:
                await self._exchange(kept, head + body, receiver)
            except ConnectionError:
                # A server may close an idle connection at any time: only a failure on a new one counts.
                if kept.has_answer:
                    raise
                self.resent += 1
                continue
            return
        await self._exchange(await self._connect(), head + body, receiver)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, self._target.host, self._target.port, ssl=self._tls)
        return connection

    async def _exchange(self, connection: _Connection, request: bytes, receiver: Receiver) -> None:
        try:
            await connection.exchange(request, receiver)
        finally:
            if connection.is_reusable:
                self._idle.append(connection)
            else:
                connection.close()


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.is_reusable = False
        self.has_answer = False
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._done: asyncio.Future[None] | None = None
        self._now_s = 0.0
        self._chunk: list[bytes] | None = None
        self._headers: dict[str, str] = {}
        self._has_length = self._has_head = False

    async def exchange(self, request: bytes, receiver: Receiver) -> None:
        """Send, and wait for the end of the answer. Raises: OSError, BrokenOff, NotHttp."""
        self.is_reusable = self.has_answer = self._has_length = self._has_head = False
        self._receiver, self._chunk, self._headers = receiver, None, {}
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        if self._transport is None or self._transport.is_closing():
            raise BrokenOff("the server closed the connection")
        self._transport.write(request)
        await self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's derives from nothing of asyncio's

    def data_received(self, data: bytes) -> None:
        self._now_s = time.perf_counter()
        self.has_answer = True
        if self._parser is None or self._done is None or self._done.done():
            self.close()  # unexpected data
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(NotHttp(f"the answer is no HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._receiver is None:
            return
        if exc is None and self._has_head and not self._has_length:
            self._end(None)  # a body without a length ends with its connection
        else:
            self._end(BrokenOff("the connection was closed before the answer's end" if exc is None else str(exc)))

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        assert self._receiver is not None
        self._has_head = True
        self._has_length = not self._headers.keys().isdisjoint(("content-length", "transfer-encoding"))
        self._receiver.begin(self._parser.get_status_code(), self._headers)

    def on_chunk_header(self) -> None:
        self._chunk = []

    def on_body(self, body: bytes) -> None:
        if self._chunk is not None:
            self._chunk.append(body)
        elif self._receiver is not None:
            self._receiver.feed(body, self._now_s)

    def on_chunk_complete(self) -> None:
        if self._chunk and self._receiver is not None:
            self._receiver.feed(self._chunk[0] if len(self._chunk) == 1 else b"".join(self._chunk), self._now_s)
        self._chunk = []

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self.is_reusable = self._has_length and self._parser.should_keep_alive()
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        self._receiver = None
        if self._done is None or self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self.is_reusable = False
            self._done.set_exception(error)
