"""A real server in a thread on a free port, over fakes or whatever a test hands in, and raw access to it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from dragoman.server.admission import Admission
from dragoman.server.api import Dialects
from dragoman.server.app import ServerConfig
from dragoman.server.hosting import ModelOwner
from dragoman.server.registry import GenerationService, ModelRegistry, ServedModel
from dragoman.server.run import HttpServer, ListenConfig, loop_factory
from tests.support import haste  # noqa: F401  # it acts by being imported
from tests.support.fake_hosting import FakeHosting
from tests.support.fake_service import FakeEngine, FakeService
from tests.support.line_dialect import line_dialects
from tests.support.patience import PATIENCE_S


class RunningServer:
    """A server that serves one fake model called `fake`, and more if a test adds them."""

    def __init__(
        self,
        config: ServerConfig | None = None,
        listen: ListenConfig | None = None,
        dialects: Dialects | None = None,
        *,
        has_hosting: bool = False,
        models: Sequence[ServedModel] = (),
        **admission: Any,
    ) -> None:
        """`has_hosting`: models come and go, as `hosting` lets them. `models`: served from the first call on."""
        self.dialects = dialects or line_dialects()
        self.registry = ModelRegistry(self.dialects, ["fake"])
        for model in models:
            self.registry.add(model)
        self.service = FakeService()
        self.engine = FakeEngine()
        self.admission = Admission("fake", **admission)
        self.may_load = threading.Event()
        self.may_load.set()
        self.load_error: Exception | None = None
        self.exit_code: int | None = None
        self.port = 0
        self._is_listening = threading.Event()
        self._is_loaded = threading.Event()
        self.hosting = FakeHosting(self.registry, self.dialects)
        self.http = HttpServer(
            self.registry,
            config or ServerConfig(),
            listen or ListenConfig(port=0),
            self._load,
            self._on_listening,
            owner=ModelOwner(self.hosting if has_hosting else None),
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        """The server's base URL."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, wait_ready: bool = True) -> None:
        """Start the thread and wait until the port is open, and by default until the model is served."""
        self._thread.start()
        assert self._is_listening.wait(PATIENCE_S), "the server did not open its port"
        if wait_ready:
            assert self._is_loaded.wait(PATIENCE_S), "the server did not load"
            while httpx.get(f"{self.url}/ping").status_code != 200:
                pass

    def join(self) -> int | None:
        """The exit code, once the server has ended."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server did not end"
        return self.exit_code

    def connect(self) -> socket.socket:
        """A raw connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def add_model(self, name: str, service: GenerationService, *aliases: str) -> None:
        """Serve another model; its dialects are named `<name>/<slot>`."""
        self.registry.add(ServedModel(name, service, FakeEngine(), self.dialects, Admission(name), aliases))

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            self.exit_code = runner.run(self.http.serve())

    def _on_listening(self, host: str, port: int) -> None:
        self.port = port
        self._is_listening.set()

    async def _load(self, registry: ModelRegistry) -> None:
        await asyncio.to_thread(self.may_load.wait, PATIENCE_S)
        if self.load_error is not None:
            raise self.load_error
        registry.add(
            ServedModel("fake", self.service, self.engine, self.dialects, self.admission, ("nickname",), created_s=7)
        )
        self._is_loaded.set()


@contextmanager
def running_server(*args: Any, **kwargs: Any) -> Iterator[RunningServer]:
    """A started server, stopped at the end whatever happens."""
    server = RunningServer(*args, **kwargs)
    server.start()
    try:
        yield server
    finally:
        server.may_load.set()
        server.http.stop()
        server.http.stop()  # twice: what a failed test left running must not delay the others
        server.join()


def post_bytes(path: str, body: bytes, *headers: str) -> bytes:
    """The bytes of a POST request with a JSON body."""
    lines = [f"POST {path} HTTP/1.1", "host: test", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read_until(connection: socket.socket, marker: bytes) -> bytes:
    """Everything received up to and including the piece in which `marker` appears, or up to the end."""
    received = b""
    while marker not in received:
        piece = connection.recv(65_536)
        if not piece:
            break
        received += piece
    return received


def read_to_end(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    received = b""
    while piece := connection.recv(65_536):
        received += piece
    return received
