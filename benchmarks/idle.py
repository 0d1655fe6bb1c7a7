"""What connections cost that do nothing: the server's resident memory, and how long a request takes beside them.

Does: start a server of its own, open so many connections, half of which have been answered once and half of which say
nothing, read the server's memory before and after, close them. The last line is JSON. Does not: judge.

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

from benchmarks.serving.processes import Server, ServerProcess

_PING = b"GET /ping HTTP/1.1\r\nhost: test\r\n\r\n"
_MIB = 1 << 20


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _open(port: int, *, is_used: bool) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    if is_used:
        connection.sendall(_PING)
        answer = b""
        while b"}}" not in answer:
            answer += connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 200")
    return connection


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
    port = _free_port()
    command = (sys.executable, "-m", "dragoman", "serve", "--port", str(port), "--kv-cache-gb", "0.05")
    server = Server("idle", command, port, "openai")
    with tempfile.TemporaryDirectory() as logs, ServerProcess(server, Path(logs)) as process:
        process.resume()
        warm = [_open(port, is_used=True) for _ in range(200)]  # what only the first ones cost
        before = process.rss_bytes()
        begin = time.perf_counter()
        held = [_open(port, is_used=bool(number % 2)) for number in range(wanted)]
        opened_s = time.perf_counter() - begin
        ping_s = _ping_s(server)
        growth = process.rss_bytes() - before
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
