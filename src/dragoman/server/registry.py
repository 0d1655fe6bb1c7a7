"""The models that a process serves, by the names in calls, and their adapters. Holds only models that answer.

On the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from dragoman.engine.base import AdapterLoading, Engine
from dragoman.errors import Conflict, EngineDead, InvalidRequest, NotFound, NotLoaded, Unavailable, UnknownModel
from dragoman.server.admission import Admission
from dragoman.server.api import Dialects, ModelCard, ModelProfile
from dragoman.server.observation.metrics import LoadMetrics
from dragoman.server.pooling.base import PoolingService
from dragoman.types import GenerationEvent, GenerationRequest, GenerationResult, Limits

PLACEHOLDER_MODELS = frozenset({"", "default", "dummy", "tgi", "lmi", "model"})
"""Names that clients send when any model may answer."""

MAX_SHOWN_NAMES = 30  # of models, in an error


TakeEvent = Callable[[GenerationEvent], None]


class GenerationService(Protocol):
    """The part of `generation.service.Service` that the server needs."""

    async def run(self, request: GenerationRequest, take: TakeEvent) -> None:
        """Pass each event to `take` on the event loop; cancelling this aborts the request."""
        ...

    async def generate(self, request: GenerationRequest) -> GenerationResult: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model and everything needed to answer for it. `version`: calls may add it to the name; "" = none.

    `adapters` None = it takes none. `pooling`: of a model that embeds or scores texts; its `service` refuses.
    """

    name: str
    service: GenerationService
    engine: Engine
    dialects: Dialects
    admission: Admission
    aliases: tuple[str, ...] = ()
    url: str = ""
    dtype: str = ""
    device: str = "cpu"
    limits: Limits = field(default_factory=Limits)
    created_s: int = field(default_factory=lambda: int(time.time()))
    version: str = ""
    adapters: ServedAdapters | None = None
    profile: ModelProfile = field(default_factory=ModelProfile)
    pooling: PoolingService | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names that calls may use; a version follows the name after a slash, as in LMI's paths."""
        versioned = (f"{self.name}/{self.version}",) if self.version else ()
        return (self.name, *self.aliases, *versioned)


@dataclass(frozen=True, slots=True)
class UnloadedModel:
    """A model that the next call for it loads."""

    name: str
    aliases: tuple[str, ...] = ()
    url: str = ""
    card: ModelCard = field(default_factory=ModelCard)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


class ServerState(StrEnum):
    """The state of the process; only READY takes requests."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The progress of loading. `fraction`: of this stage, 0 to 1. `begin_s`: monotonic. `bytes_total` 0 = unknown."""

    stage: str
    fraction: float
    bytes_read: int = 0
    bytes_total: int = 0
    begin_s: float = field(default_factory=time.monotonic)


class ModelRegistry:
    """The served models by name, which may change while the port is open. Starts in LOADING.

    `dialects` answer calls that reach no model. `expected_names`: will be added. `profile`: of the default model.
    """

    def __init__(
        self,
        dialects: Dialects,
        expected_names: Sequence[str] = (),
        profile: ModelProfile | None = None,
        *,
        can_be_empty: bool = False,
    ) -> None:
        self.dialects = dialects
        self.profile = profile or ModelProfile()
        self.loads = LoadMetrics()  # written by the loader of models
        self._can_be_empty = can_be_empty
        self._expected_names = dict.fromkeys(expected_names)  # in order
        self._models: dict[str, ServedModel] = {}
        self._names: dict[str, ServedModel] = {}
        self._leaving: list[ServedModel] = []  # they finish their calls
        self.state = ServerState.LOADING
        self.reason = ""  # why the state is FAILED
        self._given_up = asyncio.Event()
        self._progress: dict[str, LoadProgress] = {}
        self._later_names: set[str] = set()  # of models added after the start
        self._dropped: tuple[UnloadedModel, ...] = ()
        self._stored: tuple[UnloadedModel, ...] = ()
        self._away: dict[str, str] = {}  # each name of these, and the model's `name`
        self._default_away = ""  # the default model of the start, while it is one of them

    @property
    def models(self) -> tuple[ServedModel, ...]:
        return tuple(self._models.values())

    @property
    def expected_names(self) -> tuple[str, ...]:
        """Announced models that have not been added yet."""
        return tuple(name for name in self._expected_names if name not in self._models)

    def expect(self, name: str) -> None:
        self._expected_names[name] = None

    def expect_no_more(self, name: str) -> None:
        """Note that the loading of an announced model has ended, well or not."""
        self._expected_names.pop(name, None)
        self._progress.pop(name, None)

    def note_progress(self, name: str, progress: LoadProgress) -> None:
        """Note the progress of loading a model, or of rebuilding its engine. Any thread."""
        self._progress[name] = progress

    def progress_of(self, name: str) -> LoadProgress | None:
        return self._progress.get(name)

    def get(self, name: str) -> ServedModel | None:
        """The model of exactly that name or alias, if it takes calls."""
        return self._names.get(name)

    @property
    def unloaded(self) -> tuple[UnloadedModel, ...]:
        """The models that a call for them loads, including those that are loading."""
        models = {model.name: model for model in (*self._stored, *self._dropped)}
        return tuple(model for model in models.values() if model.name not in self._names)

    def unloaded_called(self, name: str) -> UnloadedModel | None:
        return next((model for model in self.unloaded if name in model.names), None)

    def note_dropped(self, models: Iterable[UnloadedModel]) -> None:
        """Note all models that were dropped; a call for one loads it again."""
        self._dropped = tuple(models)
        self._note_away()
        if self._default_away not in self._away:
            self._default_away = ""

    def note_stored(self, models: Iterable[UnloadedModel]) -> None:
        """Note all models in the models directory."""
        self._stored = tuple(models)
        self._note_away()

    def _note_away(self) -> None:
        self._away = {name: model.name for model in (*self._stored, *self._dropped) for name in model.names}

    def _away_as(self, name: str | None) -> str | None:
        """The model to load for a call that names `name`; None if it means a served or unknown one."""
        if name in self._names:
            return None
        if name in self._away:
            return self._away[name]
        if name is not None and name not in PLACEHOLDER_MODELS:
            return None
        sole = set(self._away.values()) if not self._models else set()
        return self._default_away or (sole.pop() if len(sole) == 1 else None)

    def is_of_start(self, model: ServedModel) -> bool:
        """True for a model that was loaded before the server was ready."""
        return model.name not in self._later_names

    def is_default(self, model: ServedModel) -> bool:
        """True for the model of the start that calls without a name mean."""
        return next(iter(self._models.values()), None) is model and self.is_of_start(model)

    def add(self, model: ServedModel) -> None:
        """Serve `model` under its names. Raises: ValueError if one is taken."""
        self._check_names(model, None)
        if model.name == self._default_away:
            self._default_away = ""
            self._models = {model.name: model, **self._models}
        else:
            self._note_time(model)
            self._models[model.name] = model
        self._names.update(dict.fromkeys(model.names, model))
        self._expected_names.pop(model.name, None)
        self._progress.pop(model.name, None)
        self._drain_late(model)

    def replace(self, old: ServedModel, new: ServedModel) -> None:
        """Serve `new` in the place of `old`, which finishes its calls. Raises: ValueError, and changes nothing then."""
        if self._models.get(old.name) is not old:
            raise ValueError(f"model {old.name!r} is not served")
        self._check_names(new, old)
        self._later_names.discard(old.name)
        self._note_time(new)
        self._models = {
            new.name if model is old else name: new if model is old else model for name, model in self._models.items()
        }
        self._names = {name: model for name, model in self._names.items() if model is not old}
        self._names.update(dict.fromkeys(new.names, new))
        self._leaving.append(old)
        self._progress.pop(new.name, None)
        self._drain_late(new)

    def retire(self, model: ServedModel, *, is_dropped: bool = False) -> None:
        """Let no new call find `model`. `is_dropped`: a call for it loads it again. Raises: ValueError."""
        if self._models.get(model.name) is not model:
            raise ValueError(f"model {model.name!r} is not served")
        if is_dropped and self.is_default(model):
            self._default_away = model.name
        del self._models[model.name]
        self._later_names.discard(model.name)
        self._names = {name: other for name, other in self._names.items() if other is not model}
        self._leaving.append(model)

    def forget(self, model: ServedModel) -> None:
        self._leaving = [other for other in self._leaving if other is not model]

    def mark_ready(self) -> None:
        """Take requests from now on, unless a drain has begun. Raises: ValueError without a model, if one is needed."""
        if not self._models and not self._can_be_empty:
            raise ValueError("the server cannot be ready: no model was added")
        if self.state is ServerState.LOADING:
            self.state = ServerState.READY

    def mark_failed(self, reason: str) -> None:
        """Note that loading failed; health checks turn red."""
        self.state = ServerState.FAILED
        self.reason = reason

    def give_up(self, reason: str) -> None:
        """Have the process end, with that reason; health checks turn red."""
        self.mark_failed(reason)
        self._given_up.set()

    async def wait_given_up(self) -> None:
        await self._given_up.wait()

    def announce_drain(self) -> None:
        """Turn readiness off, and still take calls: load balancers have to see it first."""
        self.state = ServerState.DRAINING

    def drain(self) -> None:
        """Turn readiness off and refuse new calls."""
        self.state = ServerState.DRAINING
        for model in (*self._models.values(), *self._leaving):
            model.admission.drain()

    @property
    def num_in_flight(self) -> int:
        """Requests of all models, leaving ones included."""
        return sum(model.admission.num_in_flight for model in (*self._models.values(), *self._leaving))

    async def wait_idle(self) -> None:
        """Return once no model has a request in flight."""
        for model in (*self._models.values(), *self._leaving):
            await model.admission.wait_idle()

    @property
    def is_single(self) -> bool:
        """True if each call means the same model: there is at most one, loaded or not."""
        return len({*self._models, *self.expected_names, *self._away.values()}) <= 1

    def knows(self, name: str) -> bool:
        """True if `name` is a model's, served or to be loaded, and not a placeholder."""
        is_known = name in self._names or name in self.expected_names or name in self._away
        return is_known or self._with_adapter(name) is not None

    def find(self, name: str | None) -> ServedModel:
        """The model of that name, alias or adapter; the default for None and placeholders.

        Raises: UnknownModel, also if no model is served; NotLoaded; Unavailable while loading or unloading; EngineDead.
        """
        if name is not None and (model := self._names.get(name)) is not None:
            return model
        if name is not None and (model := self._with_adapter(name)) is not None:
            return model
        if self.state is ServerState.READY and (away := self._away_as(name)) is not None:
            raise NotLoaded(away)
        if name is not None and name not in PLACEHOLDER_MODELS and name not in self.expected_names:
            raise self._unknown(name)
        if name in self.expected_names or not self._models:
            raise self._unavailable(name)
        return next(iter(self._models.values()))

    def _with_adapter(self, name: str) -> ServedModel | None:
        models = self._models.values()
        return next((model for model in models if model.adapters is not None and name in model.adapters.names), None)

    def _check_names(self, model: ServedModel, instead_of: ServedModel | None) -> None:
        for name in model.names:
            other = self._names.get(name)
            if other is not None and other is not instead_of:
                raise ValueError(f"model name {name!r} is already served by model {other.name!r}")

    def _note_time(self, model: ServedModel) -> None:
        if self.state is not ServerState.LOADING:
            self._later_names.add(model.name)

    def _drain_late(self, model: ServedModel) -> None:
        if self.state is ServerState.DRAINING:
            model.admission.drain()

    def _served_names(self) -> str:
        names = tuple(dict.fromkeys((*self._names, *self.expected_names, *self._away)))
        more = len(names) - MAX_SHOWN_NAMES
        shown = names if more <= 0 else (*names[:MAX_SHOWN_NAMES], f"{more} more")
        return ", ".join(shown) or "none"

    def _unknown(self, name: str) -> NotFound | Unavailable:
        if any(name in model.names for model in self._leaving):
            return Unavailable(f"Model {name} is being unloaded", retry_after_s=5)
        return UnknownModel(f"Model or workflow not found: {name} (served: {self._served_names()})", param="model")

    def _unavailable(self, name: str | None) -> Unavailable | EngineDead | NotFound:
        if self.state is ServerState.FAILED:
            return EngineDead(f"The model could not be loaded: {self.reason}")
        if self.state is ServerState.READY and not self._expected_names:
            named = f"; name one of: {self._served_names()}" if self._away else ""
            return UnknownModel(f"Model or workflow not found: no model is loaded{named}", param="model")
        return Unavailable(f"Model {name or 'default'} is still loading; try again later", retry_after_s=5)


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """One adapter. `source`: its directory, as in the call that loaded it."""

    name: str
    source: str


class ServedAdapters:
    """The adapters of one model. `loading` None = they never change, else they come from below `roots`."""

    def __init__(
        self,
        engine: Engine,
        loading: AdapterLoading | None,
        first: Mapping[str, str],
        roots: Sequence[Path] = (),
        taken: Iterable[str] = (),
        links_out: Callable[[Path], Sequence[str]] = lambda directory: (),
    ) -> None:
        """`taken`: the model's own names. `links_out`: a line for each link that leads out of a directory."""
        self._engine = engine
        self._loading = loading
        self._sources = dict(first)
        self._roots = roots
        self._taken = frozenset(taken)
        self._links_out = links_out

    @property
    def names(self) -> tuple[str, ...]:
        return self._engine.capabilities.adapters

    @property
    def can_change(self) -> bool:
        return self._loading is not None

    def all(self) -> list[ServedAdapter]:
        return [ServedAdapter(name, self._sources.get(name, "")) for name in self.names]

    def get(self, name: str) -> ServedAdapter:
        """The adapter with that name. Raises: NotFound."""
        if name not in self.names:
            raise NotFound(f"Adapter not found: {name}", param="name")
        return ServedAdapter(name, self._sources.get(name, ""))

    async def load(self, name: str, source: str, *, is_replacing: bool = False) -> None:
        """Load an adapter and serve it. Raises: as `AdapterLoading`, Conflict, InvalidRequest."""
        loading = self._changing()
        if not name or not name.isprintable() or len(name) > 256 or len(name.replace(",", " ").split()) != 1:
            raise InvalidRequest(f"Adapter name {name!r} must be one word of at most 256 characters", param="name")
        if name in self._taken:
            raise Conflict(f"Adapter {name} cannot be loaded: this is the model's own name", param="name")
        directory = self._allowed(source)
        if lines := await asyncio.to_thread(self._links_out, directory):
            raise InvalidRequest(f"Adapter directory {source!r} cannot be loaded: {lines[0]}", param="src")
        await loading.load_adapter(name, directory, is_replacing=is_replacing)
        self._sources[name] = source

    async def unload(self, name: str) -> None:
        """Refuse new requests for an adapter; running ones keep it. Raises: NotFound."""
        self.get(name)
        await self._changing().unload_adapter(name)
        self._sources.pop(name, None)

    def _changing(self) -> AdapterLoading:
        if self._loading is None:
            raise InvalidRequest("Adapters cannot be loaded here: start the server with --enable-lora")
        return self._loading

    def _allowed(self, source: str) -> Path:
        """The directory without links and `..`, below one of the roots. Raises: InvalidRequest."""
        text = source.removeprefix("file://")
        for root in self._roots:
            try:
                path = (root / text).resolve()
            except (OSError, ValueError, RuntimeError):  # a null byte, links in a circle
                break
            if text and path.is_relative_to(root.resolve()) and path != root.resolve():
                return path
        allowed = " or ".join(str(root) for root in self._roots)
        raise InvalidRequest(
            f"Adapter directory {source!r} must lie in {allowed}; --lora-store names another directory", param="src"
        )
