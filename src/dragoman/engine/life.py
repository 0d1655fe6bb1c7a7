"""The life of an engine that computes on its own thread. Called by the engines, on event loops, and on its thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from dragoman.cores import enter_kernels
from dragoman.engine.base import DEATHS, Life
from dragoman.errors import EngineDead

logger = logging.getLogger(__name__)


class OnThread(Life):
    """Does not refer to the engine, whose gigabytes are freed with the last reference to it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._thread: threading.Thread | None = None

    @property
    def has_begun(self) -> bool:
        return self._thread is not None

    def begin(self, run: Callable[[], None], fail: Callable[[EngineDead], None]) -> None:
        """Start the thread, unless it runs. `fail` answers all requests. Raises: EngineDead after its end."""
        if self._thread is not None:
            if self.death:
                raise EngineDead(self.death)
            return
        self.death = ""
        self._thread = threading.Thread(target=self._work, args=(run, fail), name=self._name, daemon=True)
        self._thread.start()

    async def drain(self, wait: Callable[[float], None], drain_s: float) -> None:
        """Refuse new requests; while the thread runs, `wait` up to `drain_s` seconds for the running ones."""
        self.is_draining = True
        if self._thread is not None and not self.death:
            await asyncio.to_thread(wait, drain_s)

    async def join(self) -> None:
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _work(self, run: Callable[[], None], fail: Callable[[EngineDead], None]) -> None:
        enter_kernels()
        try:
            run()
        except BaseException as error:  # a bug or an error of the runtime: no state can be trusted any more
            logger.exception("the engine thread died")
            self.death = f"the engine stopped: {type(error).__name__}: {error}"
            fail(EngineDead(self.death))
            DEATHS.tell()
