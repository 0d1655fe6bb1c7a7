"""The owner of a process's models, as client APIs see it: loads and unloads models. `dragoman.host` implements it.

Called on the event loop; heavy work happens on threads. Only one operation at a time changes a name's meaning: others
raise `Conflict`, but `get_or_load` waits. A call keeps its model while it holds `ServedModel.admission.visit()` or a
permit; all wait for it, up to the drain timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from dragoman.coroutines import cancel_all
from dragoman.server.registry import ServedModel


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model to load, as in an operator's call. Nothing in it is trusted.

    `url`: a path, or `file://` and a path, of a directory or archive in the model store. Links and `..` are resolved
    first; paths outside are refused. `name` "" = from its options, directory or archive. `options` override the model's
    serving.properties; options of the whole server, local paths and names of code are refused.
    """

    url: str
    name: str = ""
    version: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


class ModelState(StrEnum):
    """LOADING and FAILED models answer no calls, UNLOADING ones no new calls."""

    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Bytes; an estimate while it loads."""

    weights: int = 0
    caches: int = 0
    drafts: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.caches + self.drafts


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One model at this moment. `url`: as in the call. `reason`: why it is FAILED. `num_in_flight`: calls.

    `loaded_s`, `expires_s`: when it became ready (0 = not yet), and when it is dropped unless a call comes (None =
    never); seconds since the epoch.
    """

    name: str
    state: ModelState
    url: str = ""
    aliases: tuple[str, ...] = ()
    version: str = ""
    reason: str = ""
    is_pinned: bool = False
    is_replacing: bool = False
    memory: ModelMemory = field(default_factory=ModelMemory)
    num_in_flight: int = 0
    loaded_s: int = 0
    expires_s: float | None = None


@dataclass(frozen=True, slots=True)
class SyncResult:
    loaded: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    unloaded: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)


class ModelHosting(Protocol):
    """Owns the models of a process. Each change raises `Unavailable` during shutdown."""

    async def load(self, source: ModelSource) -> ModelStatus:
        """Serve a model of the store. A caller that leaves does not end the load. Forgets a FAILED one.

        Raises: InvalidRequest, NotFound, Conflict (a name is served or changing), NoMemory, EngineFailed (see the log).
        """
        ...

    async def unload(self, name: str) -> None:
        """Refuse new calls for the model, drain it, abort the rest, free its memory. Forgets a FAILED or dropped one.

        Raises: NotFound, Conflict (pinned or changing).
        """
        ...

    async def replace(self, source: ModelSource) -> ModelStatus:
        """Load a model in the place of the one with its name, which answers until then; both have to fit into memory.

        The new one keeps pins and the place as default. Raises: as `load`, NotFound; the old model then stays.
        """
        ...

    def pin(self, name: str) -> None:
        """Never drop or unload the model; it may be replaced. Raises: NotFound, unless it is READY."""
        ...

    def unpin(self, name: str) -> None:
        """Raises: NotFound."""
        ...

    def get_or_load(self, name: str) -> AbstractAsyncContextManager[ServedModel]:
        """The model of that name, loaded if needed; it stays while the `async with` block runs.

        `name`: a served name, a dropped model's, or that of a directory or archive (without suffix) in the store.
        Callers share a load. To make room, idle unpinned models are dropped, never the default model of the start.
        Raises on entering: NotFound, NoMemory, InvalidRequest (options or files), Conflict (an alias is taken),
        EngineFailed.
        """
        ...

    async def look(self) -> None: ...

    def keep(self, model: ServedModel, seconds: float | None) -> None:
        """Keep the model for `seconds` after its last call, inf = for ever; None = as the operator configured."""
        ...

    def status(self, name: str) -> ModelStatus:
        """The model of that name or alias, in any state. Raises: NotFound."""
        ...

    def statuses(self) -> tuple[ModelStatus, ...]:
        """All models, the default first, loading and FAILED ones last."""
        ...

    def stored(self) -> tuple[ModelSource, ...]:
        """The models in the store now, for `sync`; () where any call may name them. Reads the directory."""
        ...

    async def sync(self, sources: Sequence[ModelSource]) -> SyncResult:
        """Make the served models equal to `sources`: a model has changed if its directory, options or files have.

        Pinned models that are gone stay, and are in `failures`. If the whole does not fit into memory, nothing is
        touched. Raises: InvalidRequest (two sources with one name), NoMemory, Conflict (another `sync`).
        """
        ...


@dataclass(frozen=True, slots=True)
class PullStep:
    """Progress of a download, in bytes of all files. `what`: the model's name on the hub, `commit`: its revision."""

    what: str
    commit: str = ""
    num_bytes: int = 0
    size: int = 0
    note: str = ""


class ModelPulling(Protocol):
    def pull(self, name: str) -> AsyncGenerator[PullStep]:
        """Download a model; yields its progress at each change. Calls for one model share a download, and may leave it.

        Raises, at once: InvalidParameter (not a name of the hub), Overloaded (too many downloads); later: ServerError.
        """
        ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelOwner:
    """The owner of the models. `hosting` None = they never change. `pulling` None = no downloads. `end`: of all models."""

    hosting: ModelHosting | None = None
    end: Callable[[], Coroutine[Any, Any, None]] | None = None
    pulling: ModelPulling | None = None


NO_OWNER = ModelOwner()

T = TypeVar("T")


class Changes:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    def of(cls, server: object) -> Changes:
        return cls()

    def start(self, change: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(change)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    async def run(self, change: Coroutine[Any, Any, T]) -> T:
        """The result of the change, which continues if this caller is cancelled. Raises: as the change."""
        return await asyncio.shield(self.start(change))

    async def aclose(self) -> None:
        await cancel_all(list(self._tasks))

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a waiting caller has it; others see it in the model's status
