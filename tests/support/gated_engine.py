"""A fake engine whose answers wait, on whatever thread a test lets them go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from dragoman.errors import EngineFailed
from dragoman.types import EngineOutput, EngineRequest
from tests.support.fake_engine import FakeEngine, Script


class GatedEngine(FakeEngine):
    """Generates the first token of each request at once, and the others once `open` was called; or fails then."""

    def __init__(self, script: Script, **options: Any) -> None:
        super().__init__(script, **options)
        self.fails = False
        self._is_open = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def open(self) -> None:
        """Let everything go on; for any thread."""
        self._is_open = True
        for loop, event in self._waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """See `Engine`."""
        is_first = True
        async with aclosing(super().generate(request)) as outputs:
            async for output in outputs:
                if not is_first:
                    await self._wait()
                    if self.fails:
                        raise EngineFailed("there is no more")
                is_first = False
                yield output

    async def _wait(self) -> None:
        if not self._is_open:
            event = asyncio.Event()
            self._waiting.append((asyncio.get_running_loop(), event))
            await event.wait()
