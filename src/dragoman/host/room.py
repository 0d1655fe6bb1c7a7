"""Chooses models to drop so that another one fits, and waits for those in use if that helps. Used on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dragoman.host.hosted import Hosted
from dragoman.host.ledger import MemoryLedger
from dragoman.server.hosting import ModelState
from dragoman.server.registry import ModelRegistry

PAUSE_S = 0.01  # between two checks of idle but wanted models: an engine's restart takes seconds


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
            others = [one for one in self._hosted() if self._could_go(one)]
            changing = self._under_way()
            if not changing and not self._suffices(least_bytes, others):
                return leaving
            idle = [asyncio.ensure_future(one.built.served.admission.wait_idle()) for one in others if one.built]
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
        idle = [one for one in self._hosted() if self._could_go(one) and self.may_leave(one)]
        for one in sorted(idle, key=_last_used_s):
            if self._suffices(least_bytes, leaving):
                break
            leaving.append(one)
        return leaving

    def _suffices(self, least_bytes: int, leaving: Sequence[Hosted]) -> bool:
        return least_bytes <= self._ledger.available_bytes([one.holding for one in leaving])


def _last_used_s(hosted: Hosted) -> float:
    assert hosted.built is not None  # only built models get here
    return hosted.built.served.admission.last_used_s
