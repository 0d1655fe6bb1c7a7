"""Who answers the requests of a batch: what all have in common, and a server elsewhere. `in_process` is the other one.

Does: carry one request there and its answer back, whole. Does not: repeat requests or judge answers (`run` does). Used on
the event loop; the requests run on threads of their own.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from dragoman import __version__
from dragoman.batch.requests import BatchError

# On /v1/chat/completions a client's name tells which of two documents it goes by; batches are OpenAI's.
USER_AGENT = f"dragoman-batch/{__version__} (openai)"
REFUSED = (401, 403)
TIMEOUT_S = 3600.0  # for an answer that runs; a connection that died silently must end some time


class Unreachable(Exception):
    """There was no answer; asking again may help."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `headers`: names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Sender(Protocol):
    """Who answers."""

    async def send(self, path: str, body: bytes) -> Answer:
        """The answer to `POST path`. Raises: Unreachable, or BatchError if asking anything more is no use."""
        ...

    def close(self) -> None:
        """End what runs."""
        ...


class HttpSender:
    """Asks a server elsewhere, on one thread and one connection for each request at a time."""

    def __init__(self, url: str, api_key: str, num_threads: int) -> None:
        """`url`: with or without the /v1 at its end. Raises: BatchError if it is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BatchError(f"--url={url} (command line): must be a URL that begins with http:// or https://")
        try:
            self._port = parts.port
        except ValueError:
            raise BatchError(f"--url={url} (command line): must have a port from 0 to 65535") from None
        self._url, self._host = url, parts.hostname
        self._is_tls = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json", "user-agent": USER_AGENT}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._mine = threading.local()
        self._connections: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._threads = ThreadPoolExecutor(num_threads, "dragoman-batch")

    async def send(self, path: str, body: bytes) -> Answer:
        """See `Sender`. Raises: BatchError if the server does not know the key."""
        answer = await asyncio.get_running_loop().run_in_executor(self._threads, self._post, path, body)
        if answer.status in REFUSED:
            told = answer.body[:300].decode("utf-8", "replace").strip()
            hint = "set the variable DRAGOMAN_API_KEY to a key that it takes"
            raise BatchError(f"{self._url} answered {answer.status}: {' '.join(told.split())}; {hint}")
        return answer

    def close(self) -> None:
        """End all calls; the server sees that nobody waits for them."""
        with self._lock:
            self._is_closed = True
            connections = list(self._connections)
        for connection in connections:
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
        self._threads.shutdown(wait=True, cancel_futures=True)
        for connection in connections:
            connection.close()

    def _post(self, path: str, body: bytes) -> Answer:
        """On a thread. Raises: Unreachable."""
        connection: http.client.HTTPConnection | None = getattr(self._mine, "connection", None)
        is_kept = connection is not None and connection.sock is not None
        if connection is None:
            connection = self._mine.connection = self._new_connection()
        try:
            return self._posted(connection, path, body)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if is_kept and not self._is_closed and isinstance(error, (ConnectionError, http.client.BadStatusLine)):
                return self._post(path, body)  # the server had closed it, being idle: a new one
            raise Unreachable(f"{self._url} does not answer: {error or type(error).__name__}") from error

    def _posted(self, connection: http.client.HTTPConnection, path: str, body: bytes) -> Answer:
        connection.request("POST", self._prefix + path, body, self._headers)
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, response.read())

    def _new_connection(self) -> http.client.HTTPConnection:
        """Raises: Unreachable if this is closed."""
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=TIMEOUT_S)
        with self._lock:
            if self._is_closed:
                raise Unreachable("the batch has ended")
            self._connections.add(connection)
        return connection
