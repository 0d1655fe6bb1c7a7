"""One model of the host, from the reservation of its memory to its release: its facts and status."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from dragoman.config.resolve import Config
from dragoman.engine.base import MemoryNeeds
from dragoman.host.building import BuiltModel
from dragoman.host.ledger import Holding
from dragoman.server.hosting import ModelMemory, ModelState, ModelStatus

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
    own = (directory,) if directory.is_file() else (*directory.glob("*"), *directory.glob("*/*.py"))
    for path in sorted(own):
        if path.is_file():
            facts = path.stat()
            yield str(path), facts.st_size, facts.st_mtime_ns
