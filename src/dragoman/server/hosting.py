"""The protocol by which the HTTP side has models loaded and unloaded at run time, and its values.

Does: name the operations, what they return, and which errors of `dragoman.errors` each of them raises.
Does not: load anything; `dragoman.host` implements it, and nothing below `server` imports that. Called by the routes
that manage models, on the event loop. All operations may run side by side; heavy work happens on other threads.

Names. A model has one name, and perhaps aliases and a version. Operations take the name or an alias as it is, never a
placeholder for the default model. One operation at a time changes the meaning of a name: another one
that arrives meanwhile is refused with `Conflict`, except that `get_or_load` waits.

Memory. What a model will take is reserved before anything is touched. A model that does not fit is refused with
`NoMemory`, whose one line says what is needed, what is available, and what each model holds; nothing is loaded or
unloaded then.

Calls. A call that has its `ServedModel` keeps it until it is answered, if it holds `ServedModel.admission.visit()` (or
a permit) while it works: neither `unload`, `replace` nor making room ends a model before its visitors have left, or
the drain timeout is over.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from dragoman.server.registry import ServedModel


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model to load, as an operator's call names it. Nothing in it is trusted.

    `url`: a path, or `file://` and a path, of a model directory or archive in the operator's model store; relative
    paths count from the store. Links and `..` are resolved first; what then lies outside the store is refused.
    `name`: its name; "" = the one in its options, else that of its directory or archive. `version`: "" = it has none.
    `options`: texts by name, as in serving.properties, with or without the prefix "option."; they override the model's
    own file. Refused are options of the whole server, of the operator's command line, and those with a path of this machine
    or a name of code.
    """

    url: str
    name: str = ""
    version: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


class ModelState(StrEnum):
    """The state of one model. LOADING and FAILED models answer no calls, UNLOADING ones no new calls."""

    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Memory of a model, in bytes. An estimate while it loads, known once it is ready."""

    weights: int = 0
    caches: int = 0
    drafts: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.caches + self.drafts


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One model at this moment.

    `url`: the directory or archive that was asked for. `reason`: why it is FAILED, one line, else "".
    `is_replacing`: another model is being loaded in its place; it answers until that is ready.
    `memory`: what is reserved for it (nothing once it has FAILED). `num_in_flight`: calls that it is answering.
    `loaded_s`: when it became ready, seconds since the epoch; 0 before. `expires_s`: when it is dropped if no
    call comes, in the same seconds; None = never.
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
    """The names of the models that `sync` changed.

    `failures`: for each part that failed, its name (the url where there is none) and one line that says why; that
    model is as it was before.
    """

    loaded: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    unloaded: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)


class ModelHosting(Protocol):
    """Owns the models of a process.

    Every operation that changes something raises `Unavailable` while the server shuts down. A load from outside the
    operator's model store, or on a server without one, raises `InvalidRequest`. Its line says what is allowed, or which
    option allows it.
    """

    async def load(self, source: ModelSource) -> ModelStatus:
        """Load a model and serve it with the others; returns its status, READY. Calls may name it once this returns.

        A model that FAILED earlier under this name is forgotten. A caller that goes away does not end the load.

        Raises: InvalidRequest (a wrong path or option, or unusable files; the problems in one line); NotFound
        (the store holds nothing there); Conflict (a name is served already, or is being loaded or unloaded); NoMemory;
        EngineFailed (the load failed for another reason: the log has the traceback); Unavailable (shutting down).
        """
        ...

    async def unload(self, name: str) -> None:
        """Refuse new calls for the model, let running ones finish up to the drain timeout, abort the rest, give its
        memory back.

        Returns when the memory is free. If it was the default model, the next one is. One that FAILED, or was dropped
        to make room, is forgotten.

        Raises: NotFound (no such model), Conflict (it is pinned: unpin it first; or it is being loaded, replaced or
        unloaded), Unavailable (shutting down).
        """
        ...

    async def replace(self, source: ModelSource) -> ModelStatus:
        """Load a model in the place of the one served under its name; returns the new one's status, READY.

        No call is refused meanwhile: the old model answers until the new one is ready, then the names change over at
        once. This returns after the change-over; calls in flight finish on the old model, which then gives its memory
        back (or after the drain timeout). Both are in memory for a while, and both have to fit. The new model keeps
        pins and the place as default.

        Raises: as `load`, but NotFound also if nothing is served under the name. A failure leaves the old model as it
        was.
        """
        ...

    def pin(self, name: str) -> None:
        """Keep the model: it is never dropped to make room, and `unload` refuses it. `replace` does not. Pinning twice
        has no further effect.

        Raises: NotFound (no such model, or it is not READY).
        """
        ...

    def unpin(self, name: str) -> None:
        """Undo `pin`; nothing happens if it is not pinned. Raises: NotFound (no such model)."""
        ...

    def get_or_load(self, name: str) -> AbstractAsyncContextManager[ServedModel]:
        """The model of that name, loaded from the model store if need be; it stays while the `async with` block runs.

        `name` is a served name, that of a model that was dropped, or that of a directory or archive (without its
        suffix) in the store. Callers that ask for one name at the same time share one load, which goes on while one of
        them waits.

        To make room, models that are neither pinned nor answering calls are dropped, the least recently used first,
        and only if that suffices. The default model of the start, which calls without a name mean, is never dropped.
        A dropped model is no longer served. The registry knows its names (`NotLoaded`), and this loads it again with its
        former options. Where any call may name the store's models, this waits for models that are in use, if one more fits
        once they are idle.

        Raises on entering: NotFound (neither served nor in the store); NoMemory (it would not fit, even without the
        idle models); InvalidRequest (its options or files are unusable); Conflict (one of its aliases is another
        model's); EngineFailed; Unavailable (shutting down).
        """
        ...

    async def look(self) -> None:
        """Tell the registry what the models directory holds now; nothing happens where there is none."""
        ...

    def keep(self, model: ServedModel, seconds: float | None) -> None:
        """Keep the model for `seconds` after its last call, inf = for ever; None = as the operator has configured."""
        ...

    def status(self, name: str) -> ModelStatus:
        """The model of that name or alias, whatever its state. Raises: NotFound."""
        ...

    def statuses(self) -> tuple[ModelStatus, ...]:
        """Every model, the default first, then in the order they came; those that are loading or FAILED last."""
        ...

    def stored(self) -> tuple[ModelSource, ...]:
        """The models in the store now, for `sync`; () without a store, and where any call may name its models.

        Reads the directory: call it rarely.
        """
        ...

    async def sync(self, sources: Sequence[ModelSource]) -> SyncResult:
        """Make what is served equal to `sources`: unload what is gone, replace what changed, load what is new.

        A model has changed if its directory, options or files have. Pinned models that are gone stay, and are listed in
        `failures`. The rest is done even if one part fails, but if the whole does not fit into
        memory, nothing is touched. Only one `sync` runs at a time.

        Raises: InvalidRequest (two sources have one name), NoMemory, Conflict (another `sync` is running), Unavailable
        (shutting down).
        """
        ...


@dataclass(frozen=True, slots=True)
class PullStep:
    """Progress of a download.

    `what`: the model's name on the hub, `commit`: its revision. `num_bytes`: received of all its files; `size`: of them.
    `note`: a further remark in one line, "" = none.
    """

    what: str
    commit: str = ""
    num_bytes: int = 0
    size: int = 0
    note: str = ""


class ModelPulling(Protocol):
    """Downloads models of a hub into its cache on this machine."""

    def pull(self, name: str) -> AsyncGenerator[PullStep]:
        """Download a model; yields its progress whenever that changes. The model is there when this ends.

        `name`: as on the hub. A call for a model that is being downloaded follows that download. Leaving the generator
        does not end the download, which other calls may follow.

        Raises, at once: InvalidParameter (not a name of the hub), Overloaded (too many downloads are running);
        while it runs: ServerError with one line that says why it failed; Unavailable (shutting down) both.
        """
        ...

    async def aclose(self) -> None:
        """Start no more downloads, and end every wait. Called at the end of the server."""
        ...
