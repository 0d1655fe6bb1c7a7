"""Renders untrusted templates in separate processes, which the kernel ends when they take too much.

Called on a thread that waits, never on the event loop. A process takes about 0.05 s and 20 MB, and a rendering 0.05 ms
more than here. Ctrl-C leaves it alone; it ends when the server does, because its socket is closed then.
"""

from __future__ import annotations

import atexit
import json
import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from dragoman.errors import InvalidRequest, Overloaded
from dragoman.tokenizer.template_environment import LAST, LENGTH_BYTES, LIMIT, RenderLimits

_MOST_IDLE = 2  # waiting processes for all models
_MAX_WAIT_S = 30.0  # when the processors are busy
_MAX_END_S = 1.0
_MOST_BYTES = 32 << 20  # of one question
_FORM = 2  # of marshal, the last one that repeats equal values
_ROOM = 16  # bytes of an answer besides its text

_FOLDERS = (Path(__file__).parents[2], *(Path(module.__file__ or "").parents[1] for module in (jinja2, markupsafe)))
_PROGRAM = "import sys; sys.path += sys.argv[1:]; from dragoman.tokenizer.template_environment import main; main()"
_COMMAND = (sys.executable, "-I", "-S", "-c", _PROGRAM, *dict.fromkeys(map(str, _FOLDERS)))
_VARIABLES = ("LD_LIBRARY_PATH",)  # the only variables it gets: others may hold secrets


class _Process:
    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        try:
            self._popen = subprocess.Popen(
                _COMMAND,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
                start_new_session=True,
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def ask(self, request: bytes, most: int) -> bytes:
        """The answer, of at most `most` bytes. Raises: OSError (also TimeoutError), EOFError if the process ended."""
        self._until_s = time.monotonic() + _MAX_WAIT_S
        self._wait()
        self._socket.sendall(len(request).to_bytes(LENGTH_BYTES, "little") + request)
        count = int.from_bytes(self._read(LENGTH_BYTES), "little")
        if not 2 <= count <= most:
            raise OSError(f"it answered {count} bytes")
        return bytes(self._read(count))

    def end(self) -> int | None:
        """End it; returns the exit code, minus a signal, None if it does not end."""
        self._socket.close()
        self._popen.kill()  # the exit code keeps an earlier signal
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(_MAX_END_S)
        return self._popen.returncode

    def forget(self) -> None:
        """Called in a forked process: the parent owns this one."""
        self._popen.returncode = 0
        self._socket.close()

    def _read(self, count: int) -> bytearray:
        data = bytearray(count)
        view, done = memoryview(data), 0
        while done < count:
            self._wait()
            piece = self._socket.recv_into(view[done:])
            if not piece:
                raise EOFError
            done += piece
        return data

    def _wait(self) -> None:
        self._socket.settimeout(max(self._until_s - time.monotonic(), 0.001))


_idle: list[_Process] = []
_lock = threading.Lock()


def ask(source: str, variables: Mapping[str, Any] | None, now: datetime, limits: RenderLimits) -> tuple[int, str]:
    """A process's result for the template; `variables` None = only compile it. Raises: Overloaded, InvalidRequest."""
    question = _written((source, variables, now.isoformat(), limits.max_size, limits.max_cpu_s))
    request = limits.max_bytes.to_bytes(LENGTH_BYTES, "little") + question
    if len(request) > _MOST_BYTES:
        return LIMIT, f"they have {len(request)} bytes, allowed: at most {_MOST_BYTES}"
    while True:
        process, is_new = _taken()
        try:
            answer = process.ask(request, _ROOM + 4 * limits.max_size)
        except (OSError, EOFError) as error:
            code = process.end()
            if is_new and code is not None and code > 0:
                raise Overloaded(
                    f"the process that renders chat templates ended with code {code}, try again"
                ) from error
            if is_new or code == -signal.SIGPROF:
                return LIMIT, f"it took more than {limits.max_cpu_s:g} s or {limits.max_bytes >> 20} MiB"
            continue  # an idle process may have been ended by others
        except BaseException:
            process.end()
            raise
        if answer[1] == LAST:
            process.end()
        else:
            _give_back(process)
        return answer[0], answer[2:].decode("utf-8", "surrogatepass")


def size_of(conversation: Any) -> int | None:
    """The serialised size in bytes, None if the conversation must be changed for that."""
    try:
        return len(marshal.dumps(conversation, _FORM))
    except ValueError:
        return None


def _written(question: tuple[Any, ...]) -> bytes:
    try:
        return marshal.dumps(question, _FORM)
    except ValueError:  # subclasses of dict and the like, from callers in this program
        pass
    try:
        return marshal.dumps(json.loads(json.dumps(question)), _FORM)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"messages must hold values that JSON can express: {error}", param="messages") from error


def _taken() -> tuple[_Process, bool]:
    while True:
        with _lock:
            process = _idle.pop() if _idle else None
        if process is None:
            break
        if process.is_alive:
            return process, False
        process.end()
    try:
        return _Process(), True
    except OSError as error:
        problem = f"no process can be started to render the chat template in ({error.strerror})"
        raise Overloaded(f"{problem}, try again later") from error


def _give_back(process: _Process) -> None:
    with _lock:
        is_kept = len(_idle) < _MOST_IDLE
        if is_kept:
            _idle.append(process)
    if not is_kept:
        process.end()


def end_idle() -> None:
    with _lock:
        ended, _idle[:] = list(_idle), []
    for process in ended:
        process.end()


def _forget() -> None:
    if _lock.locked():
        _lock.release()  # its owner is a thread of the parent
    for process in _idle:
        process.forget()
    _idle.clear()


atexit.register(end_idle)
os.register_at_fork(after_in_child=_forget)
