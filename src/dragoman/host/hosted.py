"""The models of the host: how one is built, its facts and status from the reservation of memory to its release.

Also plans the changes that lead to serving exactly the wanted models. The protocols of building let tests load cheap
models; `compose` implements them. Used on the event loop, apart from what reads files.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

from dragoman.config.resolve import Config
from dragoman.engine.base import MemoryNeeds
from dragoman.engine.factory import Progress
from dragoman.errors import InvalidRequest
from dragoman.host.ledger import Holding
from dragoman.server.hosting import ModelMemory, ModelState, ModelStatus
from dragoman.server.registry import ServedModel


class BuiltModel(Protocol):
    """A model with a running engine. `memory`: its known size; None = the estimate holds."""

    @property
    def served(self) -> ServedModel: ...

    @property
    def memory(self) -> ModelMemory | None: ...

    async def renew(self, progress: Progress) -> None:
        """Replace the model's dead engine. Raises: the error of the attempt; this may then be called again."""
        ...

    def give_up(self, reason: str) -> None:
        """Note that no other engine follows; calls get the reason."""
        ...

    def close(self) -> None:
        """Free resources outside the engine; called after the engine's shutdown."""
        ...


Built = TypeVar("Built", bound=BuiltModel)
Built_co = TypeVar("Built_co", bound=BuiltModel, covariant=True)


class ModelBuilder(Protocol[Built_co]):
    def needs(self, config: Config) -> MemoryNeeds:
        """The model's memory, estimated from its files; on a worker thread. Raises: ConfigError, ModelError, OSError."""
        ...

    async def build(self, config: Config, progress: Progress, memory_bytes: int | None) -> Built_co:
        """The model with a started engine. `memory_bytes`: its memory besides the weights; None = what is free then.

        Raises: ConfigError or ModelError; other errors are defects. A failed or cancelled build leaves nothing behind.
        """
        ...


Identity = tuple[object, ...]
_WEIGHTS = (".safetensors", ".gguf", ".bin")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model to load. `bytes_total`: of its weight files."""

    config: Config
    url: str
    needs: MemoryNeeds
    identity: Identity
    bytes_total: int = 0  # of its weight files

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def names(self) -> tuple[str, ...]:
        version = self.config.version
        return (*self.config.model.name, *((f"{self.name}/{version}",) if version else ()))


@dataclass(slots=True, eq=False)
class Hosted:
    """A model and its place in the ledger. `built` None = it is loading, failed, or gone.

    `is_given_up`: its engine has died for good. `keep_s`: how long it stays after its last call.
    """

    wanted: Wanted
    holding: Holding
    state: ModelState = ModelState.LOADING
    built: BuiltModel | None = None
    reason: str = ""
    is_pinned: bool = False
    is_replacing: bool = False
    is_given_up: bool = False
    loaded_s: int = 0
    keep_s: float = math.inf
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.names = self.wanted.names

    @property
    def name(self) -> str:
        return self.wanted.name

    def become_ready(self, built: BuiltModel) -> None:
        self.built, self.state, self.loaded_s = built, ModelState.READY, int(time.time())

    def fail(self, error: BaseException) -> None:
        self.state = ModelState.FAILED
        self.reason = " ".join((str(error) or type(error).__name__).split())

    def status(self) -> ModelStatus:
        in_flight = 0 if self.built is None else self.built.served.admission.num_in_flight
        return ModelStatus(
            name=self.name,
            state=self.state,
            url=self.wanted.url,
            aliases=self.wanted.config.model.name[1:],
            version=self.wanted.config.version,
            reason=self.reason,
            is_pinned=self.is_pinned,
            is_replacing=self.is_replacing,
            memory=self.holding.memory if self.state is not ModelState.FAILED else ModelMemory(),
            num_in_flight=in_flight,
            loaded_s=self.loaded_s,
            expires_s=self._expires_s(),
        )

    def left_s(self) -> float:
        """Seconds until it may be unloaded if no call comes; its full time while it answers one."""
        if self.built is None or not self.built.served.admission.is_idle:
            return self.keep_s
        return self.built.served.admission.last_used_s + self.keep_s - time.monotonic()

    def _expires_s(self) -> float | None:
        return None if math.isinf(self.keep_s) or self.is_pinned else time.time() + max(self.left_s(), 0.0)


def identity(config: Config) -> Identity:
    """Facts that change with the model: its options, and its files' names, sizes and times. Reads the directories."""
    settings = (replace(config.model, model_id=None), config.engine, config.speculation, config.server, config.clients)
    places = (config.directory.resolve(), config.model_dir.resolve())
    files = [fact for place in dict.fromkeys(places) for fact in _files(place)]
    return (*settings, dict(config.own_options), dict(config.engine_options), config.version, *places, *files)


def weights_bytes(config: Config) -> int:
    return sum(size for name, size, _ in _files(config.model_dir) if name.endswith(_WEIGHTS))


def _files(directory: Path) -> Iterator[tuple[str, int, int]]:
    """Names, sizes and times of the files that loading reads: the directory's, and packages next to model.py."""
    paths = (directory,) if directory.is_file() else (*directory.glob("*"), *directory.glob("*/*.py"))
    for path in sorted(paths):
        if path.is_file():
            facts = path.stat()
            yield str(path), facts.st_size, facts.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Plan:
    """`failures`: names that cannot be resolved; their models stay."""

    gone: Sequence[Hosted]
    changed: Sequence[tuple[Hosted, Wanted]]
    new: Sequence[Wanted]
    unchanged: tuple[str, ...]
    failures: Mapping[str, str]


def make_plan(wanted: Sequence[Wanted], failures: Mapping[str, str], served: Sequence[Hosted]) -> Plan:
    """The plan from the served to the wanted models. Raises: InvalidRequest if two wanted ones share a name."""
    by_name = {model.name: model for model in served}
    names = [name for model in wanted for name in model.names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRequest(f"models: each name may occur once; {', '.join(twice)} occurs twice")
    pinned = {model.name: "it is pinned, and stays" for model in served if model.is_pinned and model.name not in names}
    kept = {*names, *failures, *pinned}
    return Plan(
        gone=[model for model in served if model.name not in kept],
        changed=[(by_name[model.name], model) for model in wanted if _has_changed(by_name.get(model.name), model)],
        new=[model for model in wanted if model.name not in by_name],
        unchanged=tuple(
            model.name for model in wanted if model.name in by_name and not _has_changed(by_name[model.name], model)
        ),
        failures={**failures, **pinned},
    )


def _has_changed(served: Hosted | None, wanted: Wanted) -> bool:
    return served is not None and served.wanted.identity != wanted.identity
