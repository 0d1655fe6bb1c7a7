"""What a replica tells Serve of its engine; needs no Ray: of Serve only the replica's name is asked."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dragoman.engine.base import EngineTools, MemoryNeeds
from dragoman.engine.factory import BuiltEngine, EngineSetup
from dragoman.ray.arguments import read_application
from tests.support.fake_service import FakeEngine


class FakeFactory:
    """See `EngineFactory`. `engine`: the one that was made last."""

    engine: FakeEngine

    def needs(self, setup: EngineSetup) -> MemoryNeeds:
        return MemoryNeeds(0)

    def load(self, setup: EngineSetup) -> FakeFactory:
        return self

    def build(self, tools: EngineTools, memory_bytes: int) -> BuiltEngine:
        self.engine = FakeEngine()
        return BuiltEngine(self.engine)


factory = FakeFactory()
MODULE = "dragoman.ray.replica"


@pytest.fixture
def replica_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`EngineReplica`, over a Serve that knows the replica's name and nothing else."""
    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="replica"))
    fake = ModuleType("ray")
    monkeypatch.setattr(fake, "serve", SimpleNamespace(get_replica_context=lambda: context), raising=False)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, MODULE, fake)  # which has the one that is imported now forgotten afterwards
    del sys.modules[MODULE]
    return import_module(MODULE).EngineReplica


def on_replica(replica_class: Any, test: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """Run a test on a replica that is made and ended as Serve does it."""

    async def run() -> None:
        ended_by_hand: Any = type("Replica", (replica_class,), {"__del__": lambda self: None})
        replica = ended_by_hand.__new__(ended_by_hand)
        await replica_class.__init__(replica, read_application({"engine": f"{__name__}:factory"}, {}))
        try:
            await test(replica)
        finally:
            await replica_class.__del__(replica)

    asyncio.run(run())


def test_serve_replaces_a_replica_whose_engine_is_dead_but_none_that_recovers_by_itself(replica_class: Any) -> None:
    async def test(replica: Any) -> None:
        await replica.check_health()
        factory.engine.death, factory.engine.is_recovering = "no server answers", True
        await replica.check_health()
        factory.engine.is_recovering = False
        with pytest.raises(RuntimeError, match="no server answers"):
            await replica.check_health()

    on_replica(replica_class, test)
