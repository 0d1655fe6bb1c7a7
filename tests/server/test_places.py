"""Where the server is: on a socket of the machine, and below a prefix of all paths."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from dragoman.server.app import ServerConfig
from dragoman.server.run import ListenConfig, bind_unix
from tests.support.patience import PATIENCE_S
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer
from tests.support.tables import table


@contextmanager
def placed(url: str, config: ServerConfig, listen: ListenConfig) -> Iterator[httpx.Client]:
    """A client of a server that is ready; `url`: what is called begins with it."""
    server = RunningServer(config, listen, real_dialects())
    server.start(wait_ready=False)
    path = listen.unix_socket
    transport = None if path is None else httpx.HTTPTransport(uds=str(path))
    base = url if path is not None else f"{server.url}{url}"
    try:
        with httpx.Client(base_url=base, transport=transport, timeout=PATIENCE_S) as client:
            while client.get("/ping").status_code != 200:
                pass
            yield client
    finally:
        server.http.stop()
        assert server.join() == 0


@pytest.fixture(scope="module")
def below() -> Iterator[httpx.Client]:
    with placed("/llm/v9", ServerConfig(path_prefix="/llm/v9"), ListenConfig(port=0)) as client:
        yield client


def test_paths_begin_with_the_prefix(below: httpx.Client) -> None:
    answer = below.post("/v1/completions", json={"prompt": "Hi"})
    assert (answer.status_code, answer.json()["object"]) == (200, "text_completion")
    assert below.get("/openapi.json").json()["servers"] == [{"url": "."}]  # as seen from the document
    page = below.get("/", headers={"accept": "text/html"})
    assert (page.status_code, page.headers["location"]) == (307, "playground")


@table("path", ["/v1/models", "/llm/v9x/ping", "/llm", "/", "//llm/v9/../ping"])
def test_other_paths_are_unknown_and_told_why(below: httpx.Client, path: str) -> None:
    root = str(below.base_url).removesuffix("llm/v9/")
    answer = httpx.get(f"{root}{path.removeprefix('/')}", headers={"accept": "application/json"})
    assert answer.status_code == 404
    assert "all paths begin with /llm/v9 here" in answer.text


def test_the_prefix_alone_leads_to_what_is_below_it(below: httpx.Client) -> None:
    """Pages name each other by relative addresses, which need the slash."""
    answer = httpx.get(str(below.base_url).removesuffix("/"))
    assert (answer.status_code, answer.headers["location"]) == (307, "/llm/v9/")


def test_a_socket_of_the_machine_is_made_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))  # of a server that has ended without removing it
    with placed("http://localhost", ServerConfig(), ListenConfig(unix_socket=path)) as client:
        assert client.post("/v1/completions", json={"prompt": "Hi"}).status_code == 200
        with pytest.raises(OSError, match="another server listens on it"):
            bind_unix(path)
        assert client.get("/ping").status_code == 200
    assert not path.exists()


@table("kind", ["file", "directory", "missing", "long"])
def test_what_cannot_be_a_socket_is_refused_by_its_path(tmp_path: Path, kind: str) -> None:
    path = tmp_path / {"missing": "none/dragoman.sock", "long": "x" * 200}.get(kind, "dragoman.sock")
    if kind == "file":
        path.write_text("mine")
    elif kind == "directory":
        path.mkdir()
    with pytest.raises(OSError, match=f"cannot listen on {path}"):
        bind_unix(path)
    assert kind != "file" or path.read_text() == "mine"
