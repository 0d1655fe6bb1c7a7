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
    Engine,
    EngineStats,
    Health,
    Outputs,
    PooledRows,
    PromptProgress,
    Take,
    TellingProgress,
    check_request,
    deliver,
)
from dragoman.engine.factory import BuiltEngine
from dragoman.errors import EngineDead, ServerError, Unavailable
from dragoman.types import EngineOutput, EngineRequest, PooledText

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 5  # clients' error while an engine is replaced


class RenewableEngine:
    """The engine of one model, from the model's load to its end, across any number of actual engines."""

    def __init__(self, built: BuiltEngine) -> None:
        self._engine: Engine = built.engine
        self._adapters = built.adapters
        self._pooling = built.pooling
        self._adapter_changes: dict[str, Path | None] = {}  # since the model's load; None = it was unloaded
        self._past = EngineStats()  # of earlier engines
        self._num_restarts = 0

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    async def start(self) -> None:
        await self._engine.start()

    def generate(self, request: EngineRequest) -> Outputs:
        """While the engine is replaced, requests are refused with Unavailable."""
        return self._engine.generate(request)

    async def deliver(self, request: EngineRequest, take: Take) -> None:
        try:
            await deliver(self._engine, request, take)
        except ServerError as error:
            # A slow client may hold this frame for long, and with it a dead engine, whose memory the next one needs.
            raise error.with_traceback(None) from error.__cause__

    def check(self, request: EngineRequest) -> None:
        check_request(self._engine, request)

    async def pool(self, texts: Sequence[PooledText]) -> PooledRows:
        if isinstance(self._engine, _Absent):
            raise self._engine.refusal()
        assert self._pooling is not None
        return await self._pooling.pool(texts)

    def progress(self, request_id: str) -> PromptProgress | None:
        engine = self._engine
        return engine.progress(request_id) if isinstance(engine, TellingProgress) else None

    def health(self) -> Health:
        return self._engine.health()

    def stats(self) -> EngineStats:
        return replace(self._past.plus(self._engine.stats()), num_restarts=self._num_restarts)

    async def shutdown(self, drain_s: float) -> None:
        await self._engine.shutdown(drain_s)

    async def load_adapter(self, name: str, directory: Path, *, is_replacing: bool = False) -> None:
        await self._changing().load_adapter(name, directory, is_replacing=is_replacing)
        self._adapter_changes[name] = directory

    async def unload_adapter(self, name: str) -> None:
        await self._changing().unload_adapter(name)
        self._adapter_changes[name] = None

    async def renew(self, make: Callable[[], Awaitable[BuiltEngine]]) -> None:
        """End the engine, free its memory, and start the one that `make` returns.

        Raises: errors of `make` or of the start; then there is no engine, and this may be called again.
        """
        old = self._engine
        if not isinstance(old, _Absent):
            self._past, reason = self._past.plus(old.stats()), old.health().reason
            self._engine, self._adapters, self._pooling = _Absent(old.capabilities, reason), None, None
            try:
                await old.shutdown(0.0)
            except Exception:  # it is dead: its errors must not prevent the next engine
                logger.exception("the dead engine did not stop cleanly")
        else:
            self._engine = _Absent(old.capabilities, old.reason)
        del old
        built = await make()
        try:
            await built.engine.start()
            await self._load_adapters(built)
        except BaseException:
            await built.engine.shutdown(0.0)
            raise
        self._engine, self._adapters, self._pooling = built.engine, built.adapters, built.pooling
        self._num_restarts += 1

    def give_up(self, reason: str) -> None:
        """Stop replacing the engine: from now on every request fails with EngineDead and its reason."""
        if isinstance(self._engine, _Absent):
            self._engine = _Absent(self._engine.capabilities, reason, is_recovering=False)

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

    def _changing(self) -> AdapterLoading:
        if isinstance(self._engine, _Absent):
            raise self._engine.refusal()
        assert self._adapters is not None
        return self._adapters


class _Absent:
    """Stands in for an engine that died, with the reason. `is_recovering`: a replacement is being made."""

    def __init__(self, capabilities: Capabilities, reason: str, *, is_recovering: bool = True) -> None:
        self.capabilities = capabilities
        self.reason = reason
        self._is_recovering = is_recovering

    def refusal(self) -> ServerError:
        if self._is_recovering:
            text = "The engine is being restarted after a failure; try again later"
            return Unavailable(text, retry_after_s=RETRY_AFTER_S)
        return EngineDead(self.reason)

    def check(self, request: EngineRequest) -> None:
        raise self.refusal()

    async def start(self) -> None:
        raise self.refusal()

    def generate(self, request: EngineRequest) -> Outputs:
        return _Refused(self.refusal())

    def health(self) -> Health:
        return Health(False, self.reason, is_recovering=self._is_recovering)

    def stats(self) -> EngineStats:
        return EngineStats()

    async def shutdown(self, drain_s: float) -> None:
        self._is_recovering = False


class _Refused:
    def __init__(self, error: ServerError) -> None:
        self._error = error

    def __aiter__(self) -> _Refused:
        return self

    async def __anext__(self) -> EngineOutput:
        raise self._error

    async def aclose(self) -> None: ...
