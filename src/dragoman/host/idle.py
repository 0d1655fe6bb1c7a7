"""Chooses idle models to drop: those without calls for their time, and as many as another model needs to fit.

Waits for models in use if that helps. Used on the event loop, by `ModelHost`, which drops them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dragoman.host.hosted import Hosted
from dragoman.host.ledger import MemoryLedger
from dragoman.server.hosting import ModelState
from dragoman.server.registry import ModelRegistry

_SLACK_S = 1e-3  # timers may fire this much early
PAUSE_S = 0.01  # between two checks of idle but wanted models: an engine's restart takes seconds


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


class Room:
    """Chooses idle models to drop. `hosted` lists the models; `is_wanted`: True if a call waits for one.

    `under_way` lists running loads and unloads; None = do not wait for them, nor for models in use.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        ledger: MemoryLedger,
        hosted: Callable[[], Iterable[Hosted]],
        is_wanted: Callable[[Hosted], bool],
        under_way: Callable[[], list[asyncio.Task[Any]]] | None,
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._hosted = hosted
        self._is_wanted = is_wanted
        self._under_way = under_way

    async def made_for(self, least_bytes: int) -> list[Hosted]:
        """The idle models to drop for one of `least_bytes`; [] if none is needed, or all would not suffice."""
        while True:
            leaving = self._chosen(least_bytes)
            if self._under_way is None or self._suffices(least_bytes, leaving):
                return leaving
            others = [model for model in self._hosted() if self._could_go(model)]
            changing = self._under_way()
            if not changing and not self._suffices(least_bytes, others):
                return leaving
            idle = [asyncio.ensure_future(model.built.served.admission.wait_idle()) for model in others if model.built]
            try:
                await asyncio.wait((*changing, *idle), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in idle:
                    wait.cancel()
            await asyncio.sleep(PAUSE_S)  # calls that wait for one of them go first

    def may_leave(self, hosted: Hosted) -> bool:
        """True if no call uses it or waits for it, and it is not pinned."""
        if hosted.state is not ModelState.READY or hosted.built is None or hosted.is_pinned:
            return False
        return hosted.built.served.admission.is_idle and not self._is_wanted(hosted)

    def _could_go(self, hosted: Hosted) -> bool:
        """True for a model that may be dropped once idle; False for the default model."""
        if hosted.state is not ModelState.READY or hosted.built is None or hosted.is_pinned:
            return False
        return not self._registry.is_default(hosted.built.served)

    def _chosen(self, least_bytes: int) -> list[Hosted]:
        """As few as suffice, the least recently used first."""
        leaving: list[Hosted] = []
        idle = [model for model in self._hosted() if self._could_go(model) and self.may_leave(model)]
        for model in sorted(idle, key=_last_used_s):
            if self._suffices(least_bytes, leaving):
                break
            leaving.append(model)
        return leaving

    def _suffices(self, least_bytes: int, leaving: Sequence[Hosted]) -> bool:
        return least_bytes <= self._ledger.available_bytes([model.holding for model in leaving])


def _last_used_s(hosted: Hosted) -> float:
    assert hosted.built is not None  # only built models get here
    return hosted.built.served.admission.last_used_s
