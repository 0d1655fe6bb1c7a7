"""Runs what is measured as processes of their own: servers, and workers that answer JSON lines.

Does: start, wait until ready, pause and resume (SIGSTOP, SIGCONT), tell memory, end; always the whole process group.
Does not: know what a server is or send load. Only one of several should be awake while something is measured: a paused
process uses no CPU, whatever its idle threads would do. Called on the main thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

START_LIMIT_S = 1200.0  # vLLM compiles for many minutes on a small machine
_END_LIMIT_S = 30.0


def free_port() -> int:
    """A port that nobody listens on now, so that no server of another run is taken for ours."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class ProcessFailed(RuntimeError):
    """A process ended or did not answer; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server's command, where it answers when it is ready, and the wire form of its requests (see `load.FORMS`)."""

    name: str
    command: Sequence[str]
    port: int
    form: str
    ready_path: str = "/health"
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where clients send their requests."""
        return f"http://127.0.0.1:{self.port}"


class _Group:
    """A process and its children. Use in a `with` block: leaving it ends them all."""

    def __init__(self, name: str, process: subprocess.Popen[Any], log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Let the paused process run inside the block. Raises: ProcessFailed if it is gone."""
        self.check_alive()
        self.resume()
        try:
            yield
        finally:
            self.pause()

    def pause(self) -> None:
        """Stop every thread of the group where it is; it should be idle. Returns once its first process stands still."""
        self._signal(signal.SIGSTOP)
        if self._process.poll() is None:
            # WNOWAIT leaves the status to Popen; an exit ends the wait as well
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Undo `pause`."""
        self._signal(signal.SIGCONT)

    def check_alive(self) -> None:
        """Raises: ProcessFailed if the process has ended."""
        if self._process.poll() is not None:
            raise ProcessFailed(f"{self.name} ended with code {self._process.returncode}: {self._log_end()}")

    def wait_until_ready(self, server: Server) -> None:
        """Return once the process answers as `server`. Raises: ProcessFailed if it ends or takes too long."""
        end_s = time.perf_counter() + START_LIMIT_S
        while time.perf_counter() < end_s:
            self.check_alive()
            # OSError: nobody listens yet, or a status says that it is not ready
            with contextlib.suppress(OSError), urllib.request.urlopen(server.url + server.ready_path, timeout=5):
                return
            time.sleep(0.01)  # between polls of a process that offers nothing to wait on
        raise ProcessFailed(f"{self.name} was not ready after {START_LIMIT_S:.0f} s: {self._log_end()}")

    @property
    def pid(self) -> int:
        """Of the group's first process."""
        return self._process.pid

    def rss_bytes(self) -> int:
        """Resident memory of the group."""
        return sum(_rss_bytes(pid) for pid in _members(self._process.pid))

    def stop(self) -> None:
        """End the group: ask, wait, kill what is left. Calling it again does nothing."""
        self.resume()
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it is killed below
            self._process.wait(timeout=_END_LIMIT_S)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended
            os.killpg(self._process.pid, number)

    def _log_end(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["(no output)"]
        told = [line for line in lines if "Error" in line or "error:" in line]
        return " | ".join((told or lines)[-3:])[-600:]


class ServerProcess(_Group):
    """A running server. `ready_s`: seconds from process start until it said it was ready."""

    def __init__(self, server: Server, log_dir: Path) -> None:
        """Starts it and waits. Raises: ProcessFailed if it ends while starting or takes too long; it is ended then."""
        log_dir.mkdir(parents=True, exist_ok=True)
        log = log_dir / f"{_slug(server.name)}-{server.port}.log"
        environ = {**os.environ, **server.environ}
        self.server = server
        self.url = server.url
        self.begin_s = time.perf_counter()
        with log.open("w") as output:
            process = subprocess.Popen(
                list(server.command), stdout=output, stderr=subprocess.STDOUT, env=environ, start_new_session=True
            )
        super().__init__(server.name, process, log)
        try:
            self.wait_until_ready(server)
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.perf_counter() - self.begin_s


class JsonWorker(_Group):
    """A process that answers each JSON line on its standard input with one on its standard output."""

    def __init__(self, name: str, command: Sequence[str], log_dir: Path) -> None:
        """Starts it; the first answer says that it is ready. Raises: ProcessFailed if it ends first."""
        log_dir.mkdir(parents=True, exist_ok=True)
        log = log_dir / f"{_slug(name)}.log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        super().__init__(name, process, log)
        try:
            self._answer()
        except BaseException:
            self.stop()
            raise

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to `question`. Raises: ProcessFailed if the process ends instead."""
        self.check_alive()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        """End the process and close its pipes."""
        super().stop()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # libraries may write other lines
                answer: dict[str, Any] = json.loads(line)
                return answer
        self._process.wait()
        raise ProcessFailed(f"{self.name} ended with code {self._process.returncode}: {self._log_end()}")


def _slug(name: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in name)


def _members(group: int) -> list[int]:
    """The processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # the name in brackets may hold anything; behind it: state, parent, process group
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                found.append(int(entry.name))
    return found


def _rss_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0
