"""Makes a model's engine when it is loaded, and again when it has died; else ends the process for its supervisor."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from dragoman.config.resolve import Config
from dragoman.engine.base import DEATHS, EngineTools
from dragoman.engine.factory import BuiltEngine, Progress
from dragoman.host.hosted import Hosted
from dragoman.host.loading import ModelLoad, citing
from dragoman.host.machine import available_memory_bytes
from dragoman.models.memory import give_back
from dragoman.server.hosting import ModelState

logger = logging.getLogger("dragoman.host")

FailureAction = Literal["restart", "restart-then-exit", "exit"]

LOOK_S = 5.0  # between two checks: engines of other packages may die without a report
LOOK_AGAIN_S = 0.1  # while one is dead
FIRST_PAUSE_S = 0.5  # before another attempt; doubled each time


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    action: FailureAction = "restart"
    max_restarts: int = 3
    window_s: float = 600.0


Begin = Callable[[Hosted, Coroutine[Any, Any, None]], None]
"""Makes a coroutine the operation that has the model's names; does nothing, and closes it, if there is another one."""


class Recovery:
    """Watches the engines of `models`. `end_process` is called with the reason to end the process."""

    def __init__(
        self,
        policy: FailurePolicy,
        models: Callable[[], Iterable[Hosted]],
        begin: Begin,
        progress: Callable[[Hosted], Progress],
        end_process: Callable[[str], None],
    ) -> None:
        self._policy = policy
        self._models = models
        self._begin = begin
        self._progress = progress
        self._end_process = end_process
        self._restarts_s: dict[str, deque[float]] = {}  # times of restarts by the model's name
        self._has_news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start watching; if already started, check at once, since another model may be ready."""
        if self._watching is None:
            self._loop = asyncio.get_running_loop()
            self._watching = asyncio.create_task(self._watch(), name="watch the engines")
            DEATHS.listen(self.look_soon)
        else:
            self._has_news.set()

    def look_soon(self) -> None:
        """Check the engines now; for any thread."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has ended, and the engines with it
            self._loop.call_soon_threadsafe(self._has_news.set)

    async def close(self) -> None:
        DEATHS.ignore(self.look_soon)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self) -> None:
        pause_s = LOOK_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._has_news.wait()
            self._has_news.clear()
            try:
                # A separate call, so that no reference to a model lives on while this sleeps.
                pause_s = LOOK_AGAIN_S if self._look() else LOOK_S
            except Exception:  # boundary: an engine whose health check fails must not end the watching
                logger.exception("the engines could not be looked at")

    def _look(self) -> bool:
        has_dead = False
        for hosted in list(self._models()):
            if hosted.state is ModelState.READY and hosted.built is not None and not hosted.is_given_up:
                health = hosted.built.served.engine.health()
                if not health.is_alive and not health.is_recovering:
                    has_dead = True
                    self._begin(hosted, self._recover(hosted, health.reason))
        return has_dead

    async def _recover(self, hosted: Hosted, reason: str) -> None:
        logger.error("the engine of model %s has died: %s", hosted.name, reason)
        pause_s = FIRST_PAUSE_S
        while (problem := self._problem(hosted.name)) is None:
            try:
                await self._restart(hosted)
            except Exception:  # load boundary: after any error another attempt may succeed
                logger.exception("the engine of model %s could not be restarted", hosted.name)
                await asyncio.sleep(pause_s)
                pause_s *= 2
            else:
                return
        self._give_up(hosted, f"{reason}; {problem}")

    async def _restart(self, hosted: Hosted) -> None:
        assert hosted.built is not None  # this operation holds its names
        begin_s = time.monotonic()
        self._restarts_s.setdefault(hosted.name, deque()).append(begin_s)
        await hosted.built.renew(self._progress(hosted))
        logger.warning("the engine of model %s was restarted in %.1f s", hosted.name, time.monotonic() - begin_s)

    def _problem(self, name: str) -> str | None:
        policy = self._policy
        if policy.action == "exit":
            return "on_engine_failure is exit"
        times_s = self._restarts_s.get(name, deque())
        while times_s and times_s[0] <= time.monotonic() - policy.window_s:
            times_s.popleft()
        if len(times_s) < policy.max_restarts:
            return None
        return f"it was restarted {len(times_s)} times within {policy.window_s:g} s, and max_engine_restarts allows no more"

    def _give_up(self, hosted: Hosted, reason: str) -> None:
        assert hosted.built is not None
        hosted.is_given_up = True
        hosted.built.give_up(reason)
        ends = self._policy.action != "restart"
        logger.error("model %s stays without an engine%s: %s", hosted.name, ", the server ends" if ends else "", reason)
        if ends:
            self._end_process(f"the engine of model {hosted.name} has died: {reason}")


class EngineMaking:
    """Makes the engine of `config`'s model. `memory_bytes`: as in `LoadedEngine.build`; None = what is free then."""

    def __init__(self, config: Config, tools: EngineTools, memory_bytes: int | None) -> None:
        self._config = config
        self._tools = tools
        self._memory_bytes = memory_bytes
        self._has_neighbours = memory_bytes is not None

    def build(self, loading: ModelLoad) -> BuiltEngine:
        loaded = loading.result()
        if self._memory_bytes is None:
            self._memory_bytes = available_memory_bytes()
        with citing(self._config):
            return loaded.build(self._tools, self._memory_bytes)

    async def again(self, progress: Progress) -> BuiltEngine:
        """Another engine of the same size, over a model that is loaded again. Cancelling it leaves nothing behind."""
        await asyncio.to_thread(give_back)  # frees the dead engine's memory, held by reference cycles
        loading = ModelLoad(self._config, progress, has_neighbours=self._has_neighbours, has_room=True)
        building = asyncio.create_task(asyncio.to_thread(self.build, loading))
        try:
            return await asyncio.shield(building)
        except asyncio.CancelledError:
            loading.abandon()
            await asyncio.wait((building,))
            if building.exception() is None:
                await building.result().engine.shutdown(0.0)
            raise
