"""An engine that can be replaced after its death, while its users keep the same object.

`host.recovery` decides when. On the event loop; `health` and `stats` on any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dragoman.engine.base import (
    AdapterLoading,
    Capabilities,
    EngineStats,
    Health,
    PooledRows,
    PromptProgress,
    Take,
    TellingProgress,
    check_request,
    deliver,
)
from dragoman.engine.factory import BuiltEngine
from dragoman.engine.life import Delivering
from dragoman.errors import EngineDead, ServerError, Unavailable
from dragoman.types import EngineRequest, PooledText

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 5  # clients' error while an engine is replaced


class RenewableEngine(Delivering):
    """The engine of one model, from the model's load to its end, across any number of actual engines."""

    def __init__(self, built: BuiltEngine) -> None:
        self._built: BuiltEngine | None = built  # None after its death, until another one runs
        self._capabilities = built.engine.capabilities  # of the last one that has died
        self._death = ""  # the reason
        self._is_recovering = False  # another one is being made
        self._adapter_changes: dict[str, Path | None] = {}  # since the model's load; None = it was unloaded
        self._past = EngineStats()  # of earlier engines
        self._num_restarts = 0

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities if self._built is None else self._built.engine.capabilities

    async def start(self) -> None:
        await self._present().engine.start()

    async def deliver(self, request: EngineRequest, take: Take) -> None:
        """While the engine is replaced, requests are refused with Unavailable."""
        try:
            await deliver(self._present().engine, request, take)
        except ServerError as error:
            # A slow client may hold this frame for long, and with it a dead engine, whose memory the next one needs.
            raise error.with_traceback(None) from error.__cause__

    def check(self, request: EngineRequest) -> None:
        check_request(self._present().engine, request)

    async def pool(self, texts: Sequence[PooledText]) -> PooledRows:
        pooling = self._present().pooling
        assert pooling is not None
        return await pooling.pool(texts)

    def progress(self, request_id: str) -> PromptProgress | None:
        engine = None if self._built is None else self._built.engine
        return engine.progress(request_id) if isinstance(engine, TellingProgress) else None

    def health(self) -> Health:
        built = self._built
        return Health(False, self._death, is_recovering=self._is_recovering) if built is None else built.engine.health()

    def stats(self) -> EngineStats:
        built = self._built
        total = self._past if built is None else self._past.plus(built.engine.stats())
        return replace(total, num_restarts=self._num_restarts)

    async def shutdown(self, drain_s: float) -> None:
        self._is_recovering = False
        if self._built is not None:
            await self._built.engine.shutdown(drain_s)

    async def load_adapter(self, name: str, directory: Path, *, is_replacing: bool = False) -> None:
        await self._adapters().load_adapter(name, directory, is_replacing=is_replacing)
        self._adapter_changes[name] = directory

    async def unload_adapter(self, name: str) -> None:
        await self._adapters().unload_adapter(name)
        self._adapter_changes[name] = None

    async def renew(self, make: Callable[[], Awaitable[BuiltEngine]]) -> None:
        """End the engine, free its memory, and start the one that `make` returns.

        Raises: errors of `make` or of the start; then there is no engine, and this may be called again.
        """
        old, self._is_recovering = self._built, True
        if old is not None:
            self._past, self._capabilities = self._past.plus(old.engine.stats()), old.engine.capabilities
            self._death, self._built = old.engine.health().reason, None
            try:
                await old.engine.shutdown(0.0)
            except Exception:  # it is dead: its errors must not prevent the next engine
                logger.exception("the dead engine did not stop cleanly")
        del old
        built = await make()
        try:
            await built.engine.start()
            await self._load_adapters(built)
        except BaseException:
            await built.engine.shutdown(0.0)
            raise
        self._built = built
        self._num_restarts += 1

    def give_up(self, reason: str) -> None:
        """Stop replacing the engine: from now on every request fails with EngineDead and its reason."""
        if self._built is None:
            self._death, self._is_recovering = reason, False

    async def _load_adapters(self, built: BuiltEngine) -> None:
        """Load the old engine's adapters into the new one; log and leave out those whose files are gone."""
        if built.adapters is None:
            return
        for name, directory in self._adapter_changes.items():
            is_there = name in built.engine.capabilities.adapters
            try:
                if directory is not None:
                    await built.adapters.load_adapter(name, directory, is_replacing=is_there)
                elif is_there:
                    await built.adapters.unload_adapter(name)
            except ServerError as error:
                logger.error("adapter %s is not served any more: %s", name, error.message)

    def _adapters(self) -> AdapterLoading:
        adapters = self._present().adapters
        assert adapters is not None
        return adapters

    def _present(self) -> BuiltEngine:
        """Raises: Unavailable while the engine is replaced; EngineDead if no other one follows."""
        if self._built is not None:
            return self._built
        if self._is_recovering:
            text = "The engine is being restarted after a failure; try again later"
            raise Unavailable(text, retry_after_s=RETRY_AFTER_S)
        raise EngineDead(self._death)
