"""Starts `dragoman serve` as users do, in a process of its own, and knows when it is ready."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from tests.support import haste  # noqa: F401  # it acts by being imported
from tests.support.patience import PATIENCE_S

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)$", re.MULTILINE)
_READY = re.compile(r"serves .* at (https?://\S+)")


@dataclass
class ServerProcess:
    """A running server. `base_url` is where it listens; `output` is what it has written so far."""

    process: subprocess.Popen[str]
    base_url: str
    output: list[str] = field(default_factory=list)

    def metrics(self, key: str = "none") -> dict[str, float]:
        """The samples of GET /metrics by name; one model is served. `key`: where one is asked for."""
        answer = httpx.get(f"{self.base_url}/metrics", headers={"x-api-key": key})
        return {name: float(value) for name, value in _SAMPLE.findall(answer.text)}

    def terminate(self) -> int:
        """Ask the process to stop as a supervisor would; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE_S)


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def server_python() -> str:
    """The Python that has dragoman: the tests' own, unless the environment names another one."""
    return os.environ.get("DRAGOMAN_TEST_SERVER_PYTHON", sys.executable)


@contextmanager
def serve(
    *arguments: str, environ: Mapping[str, str] | None = None, patience_s: float = 120
) -> Iterator[ServerProcess]:
    """A server on a free port, ready to answer; it is stopped at the end of the block."""
    command = [server_python(), "-m", "dragoman", "serve", "--port", "0", "--host", "127.0.0.1", *arguments]
    with started(command, _READY, environ, patience_s) as (process, found, output):
        yield ServerProcess(process, found[1], output)


@contextmanager
def started(
    command: Sequence[str], ready: re.Pattern[str], environ: Mapping[str, str] | None = None, patience_s: float = 120
) -> Iterator[tuple[subprocess.Popen[str], re.Match[str], list[str]]]:
    """A process that has written what says that it is `ready`, the match, and what it writes; it ends with the block."""
    env = {**os.environ, **(environ or {})}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    output: list[str] = []
    is_decided, found = threading.Event(), []

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            match = ready.search(line)
            if match:
                found.append(match)
                is_decided.set()
        is_decided.set()  # the process ended

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert is_decided.wait(timeout=patience_s), "".join(output)
        assert found, "it stopped before it was ready:\n" + "".join(output)
        yield process, found[0], output
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(timeout=30)
        if process.stdout is not None:
            process.stdout.close()
