"""A process for counting alone: what crashes there is one failure here, with its message, and the next count starts anew.

Does: run functions of this package elsewhere, one after the other, and hand back what they return. Does not: count. The
functions, their arguments and results travel as pickles.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, ParamSpec, TypeVar

PATIENCE_S = 300  # against a hang: nothing is measured by it

P = ParamSpec("P")
R = TypeVar("R")


class CountingFailed(AssertionError):
    """What was counted raised an exception, or its process died or hung."""


class Reply(NamedTuple):
    """How a function ended: its result, or the traceback of what it raised."""

    result: Any = None
    trouble: str | None = None


class CountingProcess:
    """Starts with the first function that it is given, and again after a crash."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")  # a fork would take threads' locks along
        self._process: multiprocessing.process.BaseProcess | None = None
        self._calls: Connection

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What `function` returns there. Raises: CountingFailed."""
        if self._process is None:
            self._start()
        try:
            self._calls.send((function, args, kwargs))
            if not self._calls.poll(PATIENCE_S):
                raise CountingFailed(f"{_name_of(function)} was not done after {PATIENCE_S} s; {self._end()}")
            reply: Reply = self._calls.recv()
        except (EOFError, OSError) as error:
            raise CountingFailed(f"{_name_of(function)}: {self._end()}") from error
        if reply.trouble is not None:
            raise CountingFailed(f"{_name_of(function)} in the counting process:\n{reply.trouble}")
        result: R = reply.result
        return result

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._end()

    def _start(self) -> None:
        self._calls, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs,), name="counting", daemon=True)
        self._process.start()
        theirs.close()  # so that the end of the process is the end of the pipe

    def _end(self) -> str:
        """How the process ended, which it is helped to."""
        assert self._process is not None
        self._calls.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        code = self._process.exitcode or 0
        self._process = None
        return "the counting process " + (f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with {code}")


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))


def _serve(calls: Connection) -> None:
    faulthandler.enable()  # a crash tells on standard error where it was
    while True:
        try:
            function, args, kwargs = calls.recv()
        except EOFError:
            return
        try:
            reply = Reply(function(*args, **kwargs))
        except BaseException:
            reply = Reply(trouble=traceback.format_exc())
        calls.send(reply)
