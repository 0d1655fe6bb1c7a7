"""A host over models that cost nothing: a real store of directories, a real registry and ledger, a builder that tests drive.

A fake model answers calls as long as its engine runs; see `answer`. Loading waits, and fails, where a test says so.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.arguments import read_arguments
from dragoman.config.resolve import Config
from dragoman.config.run_time import ModelStore
from dragoman.config.several import resolve_all
from dragoman.engine.base import MemoryNeeds
from dragoman.engine.factory import Progress
from dragoman.errors import Cancelled, ServerError
from dragoman.host.host import ModelHost
from dragoman.host.ledger import MemoryLedger
from dragoman.host.recovery import FailurePolicy
from dragoman.server.admission import Admission
from dragoman.server.hosting import ModelMemory, ModelSource
from dragoman.server.registry import ModelRegistry, ServedModel
from tests.support.fake_service import FakeEngine, FakeService
from tests.support.line_dialect import line_dialects
from tests.support.patience import PATIENCE_S

MIB = 1024**2
LIMIT = 100 * MIB
SIZE = 20 * MIB  # of a model of which nothing else is said: 15 MiB of weights, 5 MiB of cache


class EndingEngine(FakeEngine):
    """An engine whose shutdown ends the calls that wait on it. `num_shutdowns`: how often it was shut down.

    `renewal_failures`: what the next attempts to renew it meet.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()
        self.num_shutdowns = 0
        self.renewal_failures: list[Exception] = []

    async def shutdown(self, drain_s: float) -> None:
        """End every call."""
        self.num_shutdowns += 1
        self.ended.set()


@dataclass
class FakeBuilt:
    """A built model. `memory`: what it says that it takes."""

    served: ServedModel
    memory: ModelMemory | None
    is_closed: bool = False

    num_renewals: int = 0
    given_up: str = ""

    async def renew(self, progress: Progress) -> None:
        """Bring the engine to life again, unless it says that it cannot be."""
        self.num_renewals += 1
        progress("building", 0.5)
        engine = self.served.engine
        assert isinstance(engine, EndingEngine)
        if engine.renewal_failures:
            raise engine.renewal_failures.pop(0)
        engine.death = ""

    def give_up(self, reason: str) -> None:
        """Note it."""
        self.given_up = reason

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


@dataclass
class FakeBuilder:
    """Builds fake models.

    `needs_by_name`, `memory_by_name`: what a model is estimated to take, and what it says it took. `gates`: names whose
    building waits. `failures`: names whose building fails. `started`, `ended`: names in the order in which building began
    and ended; `configs`: what was built; `rooms`: the memory that each could count on.
    """

    needs_by_name: dict[str, MemoryNeeds] = field(default_factory=dict)
    memory_by_name: dict[str, ModelMemory] = field(default_factory=dict)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    failures: dict[str, BaseException] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    configs: list[Config] = field(default_factory=list)
    rooms: list[int | None] = field(default_factory=list)

    def needs(self, config: Config) -> MemoryNeeds:
        """As a test says."""
        return self.needs_by_name.get(config.name, MemoryNeeds(15 * MIB, 0, 5 * MIB, 5 * MIB))

    async def build(self, config: Config, progress: Progress, memory_bytes: int | None) -> FakeBuilt:
        """A model, unless a test says something else."""
        self.started.append(config.name)
        self.configs.append(config)
        self.rooms.append(memory_bytes)
        progress("building the graph", 0.5)
        try:
            if config.name in self.gates:
                await self.gates[config.name].wait()
            if config.name in self.failures:
                raise self.failures[config.name]
        finally:
            self.ended.append(config.name)
        served = ServedModel(
            name=config.name,
            aliases=config.model.name[1:],
            service=FakeService(),
            engine=EndingEngine(),
            dialects=line_dialects(),
            admission=Admission(config.name),
            url=str(config.model_dir),
            version=config.version,
        )
        return FakeBuilt(served, self.memory_by_name.get(config.name))


@dataclass
class Hosting:
    """A host and what it is made of. `free_bytes`: what the machine says that it has."""

    host: ModelHost[FakeBuilt]
    builder: FakeBuilder
    registry: ModelRegistry
    ledger: MemoryLedger
    store: Path
    free: list[int]
    models_of_store: ModelStore

    @property
    def names(self) -> list[str]:
        """Who is served, in order."""
        return [model.name for model in self.registry.models]

    def engine(self, name: str) -> EndingEngine:
        """The engine of the model that is served under the name."""
        engine = self.registry.find(name).engine
        assert isinstance(engine, EndingEngine)
        return engine


def write_models(directory: Path, *names: str) -> None:
    """Directories that look like models."""
    for name in names:
        (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / name / "config.json").write_text("{}", encoding="utf-8")


def hosting(
    tmp_path: Path,
    *names: str,
    drain_s: float = PATIENCE_S,
    limit: int = LIMIT,
    line: str = "",
    is_ready: bool = True,
    policy: FailurePolicy | None = None,
    is_named: bool = False,
    idle_s: float = math.inf,
) -> Hosting:
    """A host that has no model yet, over a store with models of these names. Inside a running event loop.

    `is_named`: any call may name them. `idle_s`: how long they stay after the last call.
    """
    store = tmp_path / "store"
    write_models(tmp_path, "demo")
    write_models(store, *names)
    option = "models-dir" if is_named else "model-store"
    words = f"--load-models NONE --{option} {store} --cache-dir {tmp_path}/cache {line}".split()
    givens = read_arguments(words).givens
    found = resolve_all(givens, {}, tmp_path / "demo")
    free = [2**40]
    registry = ModelRegistry(line_dialects(), can_be_empty=True)
    ledger = MemoryLedger(limit, lambda: free[0])
    builder = FakeBuilder()
    model_store = ModelStore(found.store, found.process, givens, {}, tmp_path / "demo", found.is_named)
    host = ModelHost(registry, builder, model_store, ledger, drain_s, policy=policy, idle_s=idle_s)
    if is_ready:
        registry.mark_ready()
    return Hosting(host, builder, registry, ledger, store, free, model_store)


def needs(weights_mib: int, least_mib: int = 0, useful_mib: int = 0, drafts_mib: int = 0) -> MemoryNeeds:
    """Needs in MiB."""
    return MemoryNeeds(weights_mib * MIB, drafts_mib * MIB, least_mib * MIB, max(least_mib, useful_mib) * MIB)


async def answer(model: ServedModel, until: asyncio.Event) -> str:
    """A call that takes until the event, as the responder makes one; its model's name. Raises: Cancelled if aborted."""
    engine = model.engine
    assert isinstance(engine, EndingEngine)
    with model.admission.visit(), model.admission.permit():
        assert not engine.ended.is_set(), "a call reached an engine that has ended"
        waits = [asyncio.create_task(event.wait()) for event in (until, engine.ended)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if engine.ended.is_set():
            raise Cancelled("the server is shutting down")
        return model.name


@contextmanager
def calling(model: ServedModel) -> Iterator[None]:
    """A call in flight while the block runs."""
    with model.admission.visit(), model.admission.permit():
        yield


def held(ledger: MemoryLedger) -> Mapping[str, int]:
    """Who holds how many bytes."""
    return {holding.name: holding.num_bytes for holding in ledger.holdings}


Scenario = Callable[[Hosting], Awaitable[None]]


def play(tmp_path: Path, scenario: Scenario, *names: str, **options: Any) -> None:
    """Run the scenario over a host whose store has these models, and end the host."""

    async def run() -> None:
        found = hosting(tmp_path, *(names or ("a", "b", "c")), **options)
        async with asyncio.timeout(60):
            await scenario(found)
            await found.host.close()

    asyncio.run(run())


async def load(found: Hosting, *names: str) -> None:
    """Load these, one after the other."""
    for name in names:
        await found.host.load(ModelSource(name))


async def start(found: Hosting, *names: str) -> None:
    """Load these as the server does when it starts; the host was made with `is_ready=False`."""
    entries = [found.models_of_store.named(name) for name in names]
    await found.host.start([found.models_of_store.config(entry, {}) for entry in entries])
    found.registry.mark_ready()


async def refusal(work: Awaitable[object]) -> ServerError:
    """The error that it raises."""
    with pytest.raises(ServerError) as caught:
        await work
    return caught.value


def states(found: Hosting) -> dict[str, str]:
    """Each model's state."""
    return {status.name: str(status.state) for status in found.host.statuses()}
