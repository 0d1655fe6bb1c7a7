"""Lets steps and the parts of a tower compute one after the other, as both want all cores.

Does: hand the cores over from the side that has done its turn to the side that waits. So a stream's gap is one step and one
part. Two computations at once are not slower in sum. But each of a step's operations waits for both its threads, which
get time in slices of the operating system's: gaps then vary. Does not: know what is computed. A turn is entered and left on
the thread that computes: the engine's, and the embedder's.

Turns are fair as long as they are alike. A side whose last turn was less than half as long as the
other's does not wait for it. No side waits longer than that: then the operating system shares.
"""

from __future__ import annotations

from threading import Lock
from time import perf_counter
from types import TracebackType

_PATIENCE = 2.0  # times the last turn


class Turn:
    """One side. A context: the block inside is its turn. Used by one thread."""

    def __init__(self, turns: Turns) -> None:
        self.last_s = 0.0  # how long its last turn took; 0 = there was none
        self.gate = Lock()  # opened when its turn has come
        self.gate.acquire()
        self._turns = turns
        self._begin_s = 0.0

    def __enter__(self) -> None:
        """Waits for the other's turn to end, if that is not too long."""
        self._turns.take(self)
        self._begin_s = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the turn: the side that waits is next."""
        self.last_s = perf_counter() - self._begin_s
        self._turns.leave(self)


class Turns:
    """Two sides that take turns: `steps` and `parts`."""

    def __init__(self) -> None:
        self.steps, self.parts = Turn(self), Turn(self)
        self._lock = Lock()  # guards what follows
        self._holder: Turn | None = None
        self._next: Turn | None = None  # waits until its gate opens

    @property
    def is_awaited(self) -> bool:
        """True if one side waits for the other's turn to end."""
        return self._next is not None

    def take(self, side: Turn) -> None:
        """Returns when it is that side's turn, or when it has waited long enough."""
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
        """The side's turn has ended."""
        with self._lock:
            if self._holder is not side:  # it had not waited for its turn
                return
            self._holder, self._next = self._next, None
            if self._holder is not None:
                self._holder.gate.release()
