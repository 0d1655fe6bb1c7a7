"""Holds the forwards of a fake runner back until a test lets them go."""

from __future__ import annotations

import asyncio
import sys
import threading

from dragoman.engine.rolling.forward.runner import ForwardBatch
from tests.support.patience import PATIENCE_S


class ForwardGate:
    """Lets so many forwards pass and holds the others until it is opened; tells when one waits."""

    def __init__(self, num_free: int = 0) -> None:
        self._num_free = num_free
        self._changed = threading.Condition()
        self._is_reached = threading.Event()

    def __call__(self, _batch: ForwardBatch) -> None:
        with self._changed:
            if not self._num_free:
                self._is_reached.set()
                assert self._changed.wait_for(lambda: self._num_free, PATIENCE_S)
            self._num_free -= 1

    def pass_some(self, count: int) -> None:
        """Let so many forwards through from now on, and hold the others."""
        with self._changed:
            self._is_reached.clear()
            self._num_free = count
            self._changed.notify()

    def open(self) -> None:
        """Let everybody through, now and later."""
        self.pass_some(sys.maxsize)

    async def reached(self) -> None:
        """Return once a forward waits."""
        assert await asyncio.to_thread(self._is_reached.wait, PATIENCE_S)
