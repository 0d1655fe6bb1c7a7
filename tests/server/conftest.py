"""Fixtures of the HTTP server's tests."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.fake_service import Script
from tests.support.running_server import RunningServer, running_server


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    """One server for a module's tests: starting one costs more than most tests."""
    with running_server() as server:
        yield server


@pytest.fixture
def server(shared_server: RunningServer) -> RunningServer:
    """The module's server, with a script that does nothing special."""
    shared_server.service.script = Script()
    shared_server.service.scripts = {}
    shared_server.engine.death = ""
    return shared_server


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    """An HTTP client of that server."""
    with httpx.Client(base_url=server.url) as client:
        yield client
