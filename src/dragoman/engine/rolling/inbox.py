"""The way into the engine thread: requests to add and requests to abort.

Does: keep commands in order, wake the engine thread, refuse commands after closing. Does not: know what they mean.
`put` is called on any thread, everything else on the engine thread (`close` on any).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import time

import msgspec

from dragoman.engine.rolling.sequence import Prepared
from dragoman.types import EngineRequest

Due = tuple[float | None, float | None]
"""A request's deadline, and when it must have begun, in seconds; None = no such time."""


def due_on(clock: Callable[[], float], request: EngineRequest) -> Due:
    """The request's times by another clock than that on the wall, which may be set."""
    if request.deadline_s is None and request.start_by_s is None:
        return None, None
    ahead_s = clock() - time()
    return (
        None if request.deadline_s is None else request.deadline_s + ahead_s,
        None if request.start_by_s is None else request.start_by_s + ahead_s,
    )


class AddRequest(msgspec.Struct):
    """Start `request`; its outputs are marked with `key`. `prepared`: what was made of it; None = nothing was.

    `due`: its times by the engine's clock, None = they were not looked up.
    """

    key: int
    request: EngineRequest
    prepared: Prepared | None = None
    due: Due | None = None


class AbortRequest(msgspec.Struct, frozen=True):
    """Stop the request added with `key`, if it still runs, and free its blocks."""

    key: int


@dataclass(frozen=True, slots=True)
class RunBetween:
    """Call this on the engine thread, between two steps. It does not raise."""

    action: Callable[[], None]


Command = AddRequest | AbortRequest | RunBetween


class Inbox:
    """A thread-safe queue that can be closed."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._commands: list[Command] = []
        self._is_closed = False

    def put(self, command: Command) -> bool:
        """Hand over a command; False if the inbox is closed and nobody will read it."""
        with self._condition:
            if self._is_closed:
                return False
            self._commands.append(command)
            self._condition.notify()
            return True

    def drain(self) -> list[Command]:
        """All commands since the last call, in order."""
        if not self._commands:  # unlocked: a command that slips by is seen in the next step
            return []
        with self._condition:
            commands, self._commands = self._commands, []
            return commands

    def wait(self, has_work: Callable[[], bool]) -> bool:
        """Block until there are commands or `has_work()`; False once the inbox is closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._is_closed or bool(self._commands) or has_work())
            return not self._is_closed

    def close(self) -> None:
        """Refuse further commands and let `wait` return False."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    @property
    def num_pending_requests(self) -> int:
        """Requests that the engine thread has not seen yet."""
        with self._condition:
            return sum(isinstance(command, AddRequest) for command in self._commands)
