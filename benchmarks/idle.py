"""What connections cost that do nothing: the server's resident memory, and how long a request takes beside them.

Does: start a server of its own, open so many connections, half of which have been answered once and half of which say
nothing, read the server's memory before and after, close them. The last line is JSON. Does not: judge, except that it
fails where it took so long that the server has closed some meanwhile.

    python -m benchmarks.idle --connections 10000
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.serving.processes import Server, ServerProcess, free_port
from dragoman.server.run import ListenConfig

_PING = b"GET /ping HTTP/1.1\r\nhost: localhost\r\n\r\n"
_MIB = 1 << 20
KEEP_ALIVE_S = ListenConfig().keep_alive_s


class TooSlow(RuntimeError):
    """So long passed that the server has closed connections which were to be measured."""


def open_connection(port: int, *, is_used: bool) -> socket.socket:
    """A connection that was answered once, or has said nothing. Raises: ConnectionError if it is no 200, or not whole."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    try:
        if is_used:
            _have_answered(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _have_answered(connection: socket.socket) -> None:
    connection.sendall(_PING)
    answer = b""
    while b"}}" not in answer:
        if not (received := connection.recv(65_536)):
            raise ConnectionError(f"the server closed the connection after {answer!r}")
        answer += received
        if not answer.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(f"the server answered {answer!r}")


def check_in_time(seconds: float, keep_alive_s: float = KEEP_ALIVE_S) -> None:
    """Raises: TooSlow if a server that keeps idle connections so long has closed some of those opened meanwhile."""
    if seconds >= keep_alive_s:
        raise TooSlow(
            f"opening took {seconds:.1f} s; the server closes idle connections after {keep_alive_s:g} s: ask for fewer"
        )


def _ping_s(server: Server) -> float:
    """How long a new connection takes to be answered."""
    begin = time.perf_counter()
    with urllib.request.urlopen(f"{server.url}/ping", timeout=60) as answer:
        assert answer.status == 200
    return time.perf_counter() - begin


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000, help="how many (default: %(default)s)")
    wanted = parser.parse_args().connections
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    port = free_port()
    command = (sys.executable, "-m", "dragoman", "serve", "--port", str(port), "--kv-cache-gb", "0.05")
    server = Server("idle", command, port, "openai")
    with tempfile.TemporaryDirectory() as logs, ServerProcess(server, Path(logs)) as process:
        process.resume()
        warm = [open_connection(port, is_used=True) for _ in range(200)]  # what only the first ones cost
        before = process.rss_bytes()
        begin = time.perf_counter()
        held = [open_connection(port, is_used=bool(number % 2)) for number in range(wanted)]
        opened_s = time.perf_counter() - begin
        ping_s = _ping_s(server)
        growth = process.rss_bytes() - before
        check_in_time(time.perf_counter() - begin)
        for connection in (*warm, *held):
            connection.close()
        _ping_s(server)
        after = process.rss_bytes() - before
    figures = {
        "connections": wanted,
        "growth MiB": round(growth / _MIB, 1),
        "bytes each": growth // wanted,
        "kept after closing MiB": round(after / _MIB, 1),
        "ping beside them s": round(ping_s, 4),
        "opening s": round(opened_s, 1),
    }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
