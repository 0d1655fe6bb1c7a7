"""Watches idle models, so that the host frees their memory in time. Used on the event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from dragoman.host.hosted import Hosted

_SLACK_S = 1e-3  # timers may fire this much early


class IdleWatch:
    """Calls `let_go` for models that have been idle for their time. `idle_s`: this time, unless calls set it."""

    def __init__(self, idle_s: float, may_leave: Callable[[Hosted], bool], let_go: Callable[[Hosted], object]) -> None:
        self._idle_s = idle_s
        self._may_leave = may_leave
        self._let_go = let_go
        self._watches: dict[Hosted, asyncio.Task[None]] = {}
        self._changes: dict[Hosted, asyncio.Event] = {}

    def keep(self, hosted: Hosted, seconds: float | None) -> None:
        """Set how long the model stays after its last call; None = the operator's choice."""
        keep_s = self._idle_s if seconds is None else seconds
        if keep_s != hosted.keep_s:
            hosted.keep_s = keep_s
            self.look_at(hosted)

    def look_at(self, hosted: Hosted) -> None:
        """Check the model again after a change."""
        if hosted in self._watches:
            self._changes[hosted].set()
        elif not math.isinf(hosted.keep_s):
            self._changes[hosted] = asyncio.Event()
            self._watches[hosted] = asyncio.create_task(self._watch(hosted), name=f"watch {hosted.name} while idle")

    def forget(self, hosted: Hosted) -> None:
        self._changes.pop(hosted, None)
        task = self._watches.pop(hosted, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def close(self) -> None:
        for hosted in list(self._watches):
            self.forget(hosted)

    async def _watch(self, hosted: Hosted) -> None:
        changed = self._changes[hosted]
        while hosted.built is not None:
            admission = hosted.built.served.admission
            await admission.wait_idle()
            left_s = hosted.left_s()
            if left_s <= _SLACK_S and self._may_leave(hosted):
                self._let_go(hosted)
                return
            changed.clear()
            # A waiting caller begins its call at once, or has given up.
            wait_s = max(left_s, 0.05) if not hosted.is_pinned else math.inf
            try:
                async with asyncio.timeout(None if math.isinf(wait_s) else wait_s):
                    await changed.wait()
            except TimeoutError:
                pass
