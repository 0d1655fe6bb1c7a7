"""Lets steps and the parts of a tower compute in turn, as both want all cores. Each side uses its own thread.

A stream's gap is then one step and one part; with two computations at once it would vary, as each operation waits for
all its threads. A side does not wait for the other if its own last turn was less than half as long, and never longer
than that.
"""

from __future__ import annotations

from threading import Lock
from time import perf_counter
from types import TracebackType

_PATIENCE = 2.0  # times the last turn


class Turn:
    """One side. Its context manager is a turn. Used by one thread."""

    def __init__(self, turns: Turns) -> None:
        self.last_s = 0.0  # the duration of its last turn; 0 = none
        self.gate = Lock()  # opened when its turn has come
        self.gate.acquire()
        self._turns = turns
        self._begin_s = 0.0

    def __enter__(self) -> None:
        self._turns.take(self)
        self._begin_s = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.last_s = perf_counter() - self._begin_s
        self._turns.leave(self)


class Turns:
    def __init__(self) -> None:
        self.steps, self.parts = Turn(self), Turn(self)
        self._lock = Lock()  # guards the following
        self._holder: Turn | None = None
        self._next: Turn | None = None  # waits until its gate opens

    @property
    def is_awaited(self) -> bool:
        return self._next is not None

    def take(self, side: Turn) -> None:
        """Return when it is that side's turn, or when it has waited long enough."""
        with self._lock:
            if self._holder is None:
                self._holder = side
                return
            patience_s = _PATIENCE * side.last_s
            if self._holder.last_s > patience_s:
                return
            self._next = side
        if side.gate.acquire(timeout=patience_s):
            return
        with self._lock:
            if self._next is side:
                self._next = None
            else:
                side.gate.acquire()  # it was opened meanwhile

    def leave(self, side: Turn) -> None:
        with self._lock:
            if self._holder is not side:  # it had not waited for its turn
                return
            self._holder, self._next = self._next, None
            if self._holder is not None:
                self._holder.gate.release()
