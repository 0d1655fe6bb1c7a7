"""Models that come and go at no cost: `ModelHosting` over a registry, fake services and a store that is a dictionary.

Runs on the server's event loop; tests drive it from their own thread: gates hold loads back, failures end them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import PurePosixPath

from dragoman.errors import Conflict, InvalidRequest, NoMemory, NotFound, ServerError, Unavailable
from dragoman.server.admission import Admission
from dragoman.server.api import Dialects
from dragoman.server.hosting import ModelSource, ModelState, ModelStatus, SyncResult
from dragoman.server.registry import ModelRegistry, ServedModel, ServerState, UnloadedModel
from tests.support.fake_service import FakeEngine, FakeService, Gate, Journal

STORE = "/opt/ml/models"


class FakeHosting:
    """`stored`: paths by name. `room`: models that fit, those of the start not counted. `gates`, `failures`: by name.

    `is_named`: any call may name what is stored. `kept`: how long calls said that models are to stay.
    `services`: those of all models ever loaded, by name. The journal has `load`, `loaded`, `unload`, `unloaded`,
    `replaced` and `left` with names.
    """

    def __init__(self, registry: ModelRegistry, dialects: Dialects) -> None:
        self._registry = registry
        self._dialects = dialects
        self._statuses: dict[str, ModelStatus] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loads: dict[str, asyncio.Task[ModelStatus]] = {}
        self._dropped: frozenset[str] = frozenset()
        self.store: dict[str, str] = {}
        self.room: int | None = None
        self.gates: dict[str, Gate] = {}
        self.failures: dict[str, ServerError] = {}
        self.services: dict[str, list[FakeService]] = {}
        self.sources: list[ModelSource] = []
        self.journal = Journal()
        self.kept: dict[str, float | None] = {}
        self.is_named = False

    async def load(self, source: ModelSource) -> ModelStatus:
        """See `ModelHosting`."""
        name = self._resolved(source).name
        if self._registry.get(name) is not None or self._is_busy(name):
            raise Conflict(f"Model {name} is already loaded", param="model")
        self._check_room(name)
        self._statuses[name] = ModelStatus(name, ModelState.LOADING, source.url, version=source.version)
        self._registry.expect(name)
        try:
            self._registry.add(await self._build(source, name))
        except ServerError as error:
            self._statuses[name] = replace(self._statuses[name], state=ModelState.FAILED, reason=error.message)
            raise
        finally:
            self._registry.expect_no_more(name)
        self._set_dropped(self._dropped - {name})
        self.journal.write(f"loaded {name}")
        return self._become_ready(source, name)

    async def unload(self, name: str) -> None:
        """See `ModelHosting`."""
        self._check_open()
        status = self.status(name)
        if status.state is ModelState.FAILED:
            del self._statuses[status.name]
            return
        if status.state is not ModelState.READY:
            raise Conflict(f"Model {name} is {status.state}", param="model")
        model = self._registry.get(status.name)
        assert model is not None
        self.journal.write(f"unload {status.name}")
        self._registry.retire(model)
        model.admission.drain("The model is being unloaded")
        self._statuses[status.name] = replace(status, state=ModelState.UNLOADING)
        await model.admission.wait_idle()
        self._registry.forget(model)
        del self._statuses[status.name]
        self.journal.write(f"unloaded {status.name}")

    async def replace(self, source: ModelSource) -> ModelStatus:
        """See `ModelHosting`."""
        name = self._resolved(source).name
        old = self._registry.get(name)
        if old is None:
            raise NotFound(f"Model or workflow not found: {name} is not loaded", param="model")
        new = await self._build(source, name)
        self._registry.replace(old, new)
        self.journal.write(f"replaced {name}")
        task = asyncio.create_task(self._finish(old))
        self._tasks.add(task)
        return self._become_ready(source, name)

    def pin(self, name: str) -> None:
        """See `ModelHosting`."""
        raise NotImplementedError

    def unpin(self, name: str) -> None:
        """See `ModelHosting`."""
        raise NotImplementedError

    @asynccontextmanager
    async def get_or_load(self, name: str) -> AsyncIterator[ServedModel]:
        """See `ModelHosting`."""
        while (model := self._registry.get(name)) is None:
            await self._bring(name)
        with model.admission.visit():
            yield model

    async def look(self) -> None:
        """See `ModelHosting`."""
        if self.is_named:
            self._registry.note_stored(UnloadedModel(name, url=url) for name, url in self.store.items())

    def keep(self, model: ServedModel, seconds: float | None) -> None:
        """Note it."""
        self.kept[model.name] = seconds

    def status(self, name: str) -> ModelStatus:
        """See `ModelHosting`."""
        for status in self.statuses():
            if name in (status.name, *status.aliases):
                return status
        raise NotFound(f"Model or workflow not found: {name}", param="model")

    def statuses(self) -> tuple[ModelStatus, ...]:
        """See `ModelHosting`."""
        served = {model.name: self._of_served(model) for model in self._registry.models}
        expected = {name: ModelStatus(name, ModelState.LOADING) for name in self._registry.expected_names}
        return tuple(
            {**expected, **self._statuses, **served}[name] for name in {**served, **expected, **self._statuses}
        )

    def stored(self) -> tuple[ModelSource, ...]:
        """See `ModelHosting`."""
        return tuple(ModelSource(path, name) for name, path in self.store.items())

    async def sync(self, sources: Sequence[ModelSource]) -> SyncResult:
        """See `ModelHosting`. A model has changed if its path has."""
        wanted = {source.name: source for source in sources}
        served = {model.name: model.url for model in self._registry.models}
        done: dict[str, list[str]] = {"loaded": [], "replaced": [], "unloaded": [], "unchanged": []}
        failures: dict[str, str] = {}
        for name in [name for name in served if name not in wanted]:
            await self.unload(name)
            done["unloaded"].append(name)
        for name, source in wanted.items():
            if served.get(name) == source.url:
                done["unchanged"].append(name)
                continue
            try:
                await (self.replace if name in served else self.load)(source)
                done["replaced" if name in served else "loaded"].append(name)
            except ServerError as error:
                failures[name] = error.message
        return SyncResult(**{name: tuple(names) for name, names in done.items()}, failures=failures)

    async def _bring(self, name: str) -> None:
        """Return when `name` may be served; callers side by side share one load."""
        self._check_open()
        if name not in self._loads:
            if name not in self.store:
                raise NotFound(f"Model or workflow not found: the model store holds no {name}", param="model")
            self._make_room()
            self._loads[name] = asyncio.create_task(self.load(ModelSource(self.store[name], name)))
            self._loads[name].add_done_callback(lambda task: self._loads.pop(name))
        await asyncio.shield(self._loads[name])

    def _make_room(self) -> None:
        """Drop the least recently used models that answer no calls, until one more fits."""
        while self.room is not None and len(self._later()) >= self.room:
            idle = [model for model in self._later() if model.admission.is_idle]
            if not idle:
                return
            oldest = min(idle, key=lambda model: model.admission.last_used_s)
            self._registry.retire(oldest)
            self._registry.forget(oldest)
            self._set_dropped(self._dropped | {oldest.name})
            self.journal.write(f"unloaded {oldest.name}")

    def _set_dropped(self, names: frozenset[str]) -> None:
        self._dropped = names
        self._registry.note_dropped(UnloadedModel(name) for name in names)

    def _later(self) -> list[ServedModel]:
        return [model for model in self._registry.models if not self._registry.is_of_start(model)]

    def _check_room(self, name: str) -> None:
        if self.room is not None and len(self._later()) >= self.room:
            raise NoMemory(f"Model {name} needs 1 MiB, 0 MiB are available", param="model")

    def _check_open(self) -> None:
        if self._registry.state is not ServerState.READY:
            raise Unavailable("The server is still loading or shutting down", retry_after_s=5)

    def _resolved(self, source: ModelSource) -> ModelSource:
        self._check_open()
        self.sources.append(source)
        path = PurePosixPath(STORE, source.url)
        if not path.is_relative_to(STORE) or ".." in path.parts:
            raise InvalidRequest(f"url={source.url}: must be the path of a model in the model store")
        if "nothing" in path.parts:
            raise NotFound(f"url={source.url}: the model store holds no directory or archive there")
        return replace(source, name=source.name or path.name)

    def _is_busy(self, name: str) -> bool:
        status = self._statuses.get(name)
        return status is not None and status.state in (ModelState.LOADING, ModelState.UNLOADING)

    async def _build(self, source: ModelSource, name: str) -> ServedModel:
        self.journal.write(f"load {name}")
        if name in self.gates:
            await self.gates[name].wait()
        if name in self.failures:
            raise self.failures[name]
        service = FakeService()
        self.services.setdefault(name, []).append(service)
        return ServedModel(
            name, service, FakeEngine(), self._dialects, Admission(name), url=source.url, version=source.version
        )

    def _become_ready(self, source: ModelSource, name: str) -> ModelStatus:
        self._statuses.pop(name, None)
        return self.status(name)

    async def _finish(self, model: ServedModel) -> None:
        await model.admission.wait_idle()
        self._registry.forget(model)
        self.journal.write(f"left {model.name}")

    def _of_served(self, model: ServedModel) -> ModelStatus:
        return ModelStatus(
            model.name,
            ModelState.READY,
            model.url,
            model.aliases,
            model.version,
            num_in_flight=model.admission.num_in_flight,
            loaded_s=model.created_s,
        )
