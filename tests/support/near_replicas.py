"""Replicas in this process, for an engine that sends its requests away: real engines, and ways to lose them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from dragoman.engine.base import Engine
from dragoman.engine.spread import Failure, ReplicaLost, Replies, SpreadEngine
from dragoman.errors import ServerError
from dragoman.types import EngineOutput, EngineRequest

_Item = EngineOutput | Failure | Exception | None


class NearReplies:
    """What an engine of this process sends for one request, as if it came from elsewhere."""

    def __init__(self, engine: Engine, request: EngineRequest, name: str) -> None:
        self._queue: asyncio.Queue[_Item] = asyncio.Queue()
        self._name = name
        self.began = asyncio.Event()  # set with the first output
        self._task = asyncio.ensure_future(self._pump(engine, request))

    def __aiter__(self) -> AsyncIterator[EngineOutput | Failure]:
        return self

    async def __anext__(self) -> EngineOutput | Failure:
        item = await self._queue.get()
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            raise item
        return item

    def lose(self) -> None:
        """End as if the replica's process had been killed: what nobody has read yet is lost."""
        self._task.cancel()
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(ReplicaLost(f"{self._name} is gone"))

    async def aclose(self) -> None:
        """Nobody reads any more."""
        self._task.cancel()

    async def _pump(self, engine: Engine, request: EngineRequest) -> None:
        outputs = engine.generate(request)
        try:
            async for output in outputs:
                self._queue.put_nowait(output)
                self.began.set()
        except ServerError as error:
            self._queue.put_nowait(Failure(error, self._name))
        finally:
            await outputs.aclose()
        self._queue.put_nowait(None)


class OnNearReplica(SpreadEngine):
    """Spreads its requests over one engine, which it starts and ends."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.capabilities, self._send_near)
        self.engine = engine

    async def start(self) -> None:
        await super().start()
        await self.engine.start()

    async def shutdown(self, drain_s: float) -> None:
        await super().shutdown(drain_s)
        await self.engine.shutdown(0.0)

    def _send_near(self, request: EngineRequest, avoided: tuple[str, ...]) -> Replies:
        return NearReplies(self.engine, request, "near")
