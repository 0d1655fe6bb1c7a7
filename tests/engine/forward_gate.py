"""Holds the forwards of a fake runner back until a test lets them go."""

from __future__ import annotations

import asyncio
import threading

from dragoman.engine.rolling.forward.runner import ForwardBatch

PATIENCE_S = 30.0  # how long a condition may take before a test fails; a machine under load is slow


class ForwardGate:
    """Lets so many forwards pass and holds the others until it is opened; tells when one waits."""

    def __init__(self, num_free: int = 0) -> None:
        self._num_free = num_free
        self._is_open = threading.Event()
        self._is_reached = threading.Event()

    def __call__(self, _batch: ForwardBatch) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        self._is_reached.set()
        assert self._is_open.wait(PATIENCE_S)

    def open(self) -> None:
        """Let everybody through, now and later."""
        self._is_open.set()

    async def reached(self) -> None:
        """Return once a forward waits."""
        assert await asyncio.to_thread(self._is_reached.wait, PATIENCE_S)
