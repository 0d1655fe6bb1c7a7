"""Wakes a stream's writer when the stream was silent for long. Used by the responder, on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Silence:
    """Watches one stream. `is_due`: nothing was sent for `after_s` seconds. Calls `wake` when that becomes true."""

    __slots__ = ("_after_s", "_loop", "_spoke_s", "_timer", "_wake", "is_due")

    def __init__(self, after_s: float, wake: Callable[[], None]) -> None:
        self._after_s = after_s
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._spoke_s = self._loop.time()
        self._timer = self._loop.call_at(self._spoke_s + after_s, self._look)
        self.is_due = False

    def spoke(self) -> None:
        self._spoke_s = self._loop.time()
        self.is_due = False

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        due_s = self._spoke_s + self._after_s
        if self._loop.time() < due_s:
            self._timer = self._loop.call_at(due_s, self._look)
            return
        self.is_due = True
        self._timer = self._loop.call_later(self._after_s, self._look)  # once more, if the writer is held up meanwhile
        self._wake()
