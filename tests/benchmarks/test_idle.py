"""Idle connections: a server answers and holds them; one that it closes or refuses ends the measurement."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.idle import TooSlow, check_in_time, open_connection
from dragoman.server.app import ServerConfig
from tests.support.running_server import running_server


def _answer(listener: socket.socket, answer: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65_536)
        connection.sendall(answer)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "the server closed the connection"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "the server closed the connection"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "the server answered .*403"),
    ],
)
def test_a_connection_that_is_closed_or_refused_is_an_error(answer: bytes, error: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as server:
        served = server.submit(_answer, listener, answer)
        with pytest.raises(ConnectionError, match=error):
            open_connection(listener.getsockname()[1], is_used=True)
        served.result()


def test_a_server_for_this_machine_alone_answers_and_holds_the_connection_open() -> None:
    with (
        running_server(ServerConfig(allowed_hosts=())) as server,
        open_connection(server.port, is_used=True) as connection,
    ):
        connection.settimeout(0)
        with pytest.raises(BlockingIOError):
            connection.recv(1)


def test_connections_that_the_server_has_closed_meanwhile_are_not_measured() -> None:
    check_in_time(74.9)
    with pytest.raises(TooSlow, match="closes idle connections after 75 s"):
        check_in_time(75.0)
