"""Makes the engine of one model: when the model is loaded, and again when its engine has died."""

from __future__ import annotations

import asyncio

from dragoman.config.resolve import Config
from dragoman.engine.base import EngineTools
from dragoman.engine.factory import BuiltEngine, Progress
from dragoman.host.loading import ModelLoad, citing
from dragoman.host.machine import available_memory_bytes
from dragoman.models.runtime.memory import give_back


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
