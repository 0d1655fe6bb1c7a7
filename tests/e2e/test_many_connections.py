"""Connections that do nothing cost little, and more of them than files may be open hurt no longer than they last."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.patience import PATIENCE_S
from tests.support.running_server import read_until
from tests.support.server_process import ServerProcess, serve

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

MOST_BYTES = 256 * 1024 * 1024 // 10_000  # for each, so that ten thousand fit into 256 MB
NUM_WARM, NUM_IDLE = 200, 800
PING = b"GET /ping HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serve("--kv-cache-gb", "0.05") as server:
        yield server


def connections(server: ServerProcess, count: int) -> list[socket.socket]:
    port = urlsplit(server.base_url).port
    return [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in range(count)]


def answered(held: list[socket.socket]) -> None:
    for connection in held:
        connection.sendall(PING)
    for connection in held:
        answer = read_until(connection, b"}}")  # the end of its body
        assert answer.startswith(b"HTTP/1.1 200")


def close(held: list[socket.socket]) -> None:
    for connection in held:
        connection.close()


def resident_bytes(server: ServerProcess) -> int:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def is_served(server: ServerProcess) -> bool:
    try:
        return httpx.get(f"{server.base_url}/ping", timeout=PATIENCE_S).status_code == 200
    except httpx.TransportError:  # dropped: there was no file for it
        return False


def test_an_idle_connection_takes_some_kilobytes(server: ServerProcess) -> None:
    warm = connections(server, NUM_WARM)
    answered(warm)
    before = resident_bytes(server)
    held = connections(server, NUM_IDLE)
    answered(held[::2])
    assert (
        httpx.get(f"{server.base_url}/ping", timeout=PATIENCE_S).status_code == 200
    )  # all were accepted: it is the last
    growth = resident_bytes(server) - before
    close([*warm, *held])
    assert growth / NUM_IDLE < MOST_BYTES


def test_a_server_without_files_serves_again_when_some_are_closed(server: ServerProcess) -> None:
    pid = server.process.pid
    old = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    num_open = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    held = connections(server, 3)
    answered(held)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (num_open + 20, old[1]))
    flood: list[socket.socket] = []
    try:
        flood = connections(server, 100)
        answered(held)  # who is connected is served
    finally:
        close(flood)
    until = time.monotonic() + PATIENCE_S
    while not is_served(server):  # until it has noticed that they are closed
        assert time.monotonic() < until
    resource.prlimit(pid, resource.RLIMIT_NOFILE, old)
    close(held)


RAISE = """
import logging, resource, sys
logging.basicConfig(format="%(message)s", stream=sys.stdout)
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from dragoman.server.process import raise_descriptor_limit
print(raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "output"),
    [
        (256, 5000, "5000 5000 5000\n"),
        (5000, 5000, "5000 5000 5000\n"),
        (256, 1000, "only 1000 files may be open at once, and each connection is one: raise the limit"
         " (ulimit -Hn, LimitNOFILE=)\n1000 1000 1000\n"),
    ],
)  # fmt: skip
def test_the_limit_is_raised_and_a_low_one_is_told(soft: int, hard: int, output: str) -> None:
    command = [sys.executable, "-c", RAISE, str(soft), str(hard)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == output
