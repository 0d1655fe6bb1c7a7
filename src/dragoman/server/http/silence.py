"""Notices that a stream has been silent for too long, so that something is sent that means nothing.

Does: keep one timer for a stream, wake its writer. Does not: know what is sent, or write. Used by the responder, on the
event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Silence:
    """Watches one stream from now on. `is_due`: nothing was sent for `after_s` seconds, since `spoke` was called last.

    A timer is set again only when it has run out, so that a stream which speaks all the time sets none for each piece.
    """

    __slots__ = ("_after_s", "_loop", "_spoke_s", "_timer", "_wake", "is_due")

    def __init__(self, after_s: float, wake: Callable[[], None]) -> None:
        """`wake` is called as soon as something is due."""
        self._after_s = after_s
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._spoke_s = self._loop.time()
        self._timer = self._loop.call_at(self._spoke_s + after_s, self._look)
        self.is_due = False

    def spoke(self) -> None:
        """Something was sent."""
        self._spoke_s = self._loop.time()
        self.is_due = False

    def close(self) -> None:
        """Watch no longer."""
        self._timer.cancel()

    def _look(self) -> None:
        due_s = self._spoke_s + self._after_s
        if self._loop.time() < due_s:
            self._timer = self._loop.call_at(due_s, self._look)
            return
        self.is_due = True
        self._timer = self._loop.call_later(self._after_s, self._look)  # once more, if the writer is held up meanwhile
        self._wake()
