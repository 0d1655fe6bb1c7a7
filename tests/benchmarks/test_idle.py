"""Idle connections: one that the server closes ends the measurement, it does not hang."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.idle import TooSlow, check_in_time, open_connection


def _answer(listener: socket.socket, answer: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65_536)
        connection.sendall(answer)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_connection_that_is_closed_before_its_answer_has_ended_is_an_error(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as server:
        served = server.submit(_answer, listener, answer)
        with pytest.raises(ConnectionError, match="closed"):
            open_connection(listener.getsockname()[1], is_used=True)
        served.result()


def test_an_answered_connection_is_held_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as server:
        served = server.submit(_answer, listener, b"HTTP/1.1 200 OK\r\n\r\n{{}}")
        with open_connection(listener.getsockname()[1], is_used=True) as connection:
            assert connection.fileno() >= 0
        served.result()


def test_connections_that_the_server_has_closed_meanwhile_are_not_measured() -> None:
    check_in_time(74.9)
    with pytest.raises(TooSlow, match="closes idle connections after 75 s"):
        check_in_time(75.0)
