"""Owns the models of a process: loads, unloads and replaces them while others answer.

Implements `server.hosting.ModelHosting`, which documents each operation. Runs on the event loop. Each changing
operation is a task that claims its names, so that a caller who leaves does not end it halfway. Meanwhile another
operation on a name is refused: nothing is awaited between the check of a name and its claim.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, TypeVar

from dragoman.config.resolve import Config, ConfigError
from dragoman.config.run_time import ModelStore
from dragoman.engine.base import MemoryNeeds
from dragoman.engine.factory import Progress
from dragoman.errors import Conflict, InvalidRequest, NotFound, Unavailable
from dragoman.host.cards import Shelf
from dragoman.host.hosted import (
    Built,
    BuiltModel,
    Hosted,
    ModelBuilder,
    Plan,
    Wanted,
    identity,
    make_plan,
    weights_bytes,
)
from dragoman.host.idle import IdleWatch, Room
from dragoman.host.ledger import Holding, MemoryLedger, cache_bytes, split_memory
from dragoman.host.loading import check_room
from dragoman.host.recovery import FailurePolicy, Recovery
from dragoman.host.reports import log_progress, noted_progress, told, tried
from dragoman.models import ModelError
from dragoman.models.memory import give_back
from dragoman.server.hosting import ModelMemory, ModelSource, ModelState, ModelStatus, SyncResult
from dragoman.server.registry import ModelRegistry, ServedModel, ServerState

logger = logging.getLogger("dragoman.host")

T = TypeVar("T")

ABORT_WAIT_S = 5.0  # calls of an ended engine fail at once; this bounds writes to slow clients
MAX_FAILED = 100  # failed models that `statuses` still lists


@dataclass(frozen=True, slots=True)
class _Operation:
    """The operation that occupies a name. `word`: what it does. `is_on_demand`: others may wait for its outcome."""

    task: asyncio.Task[Any]
    word: str
    is_on_demand: bool = False


class ModelHost(Generic[Built]):
    """Loads, replaces and unloads models. `drain_s`: time for the calls of a leaving model.

    `progress` returns the receiver of loading reports for a model's name. `idle_s`: a model's time after its last call.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        builder: ModelBuilder[Built],
        store: ModelStore,
        ledger: MemoryLedger,
        drain_s: float,
        progress: Callable[[str], Progress] | None = None,
        policy: FailurePolicy | None = None,
        idle_s: float = math.inf,
    ) -> None:
        self._registry = registry
        self._builder = builder
        self._store = store
        self._ledger = ledger
        self._drain_s = drain_s
        self._progress = progress or log_progress
        self._hosted: dict[str, Hosted] = {}  # by name, FAILED ones too
        self._operations: dict[str, _Operation] = {}  # by each claimed name
        self._leaving: dict[asyncio.Task[None], Hosted] = {}  # replaced models, while they finish their calls
        self._dropped: dict[str, Wanted] = {}  # dropped to make room; a call loads them again
        self._num_callers: dict[str, int] = {}  # calls within `get_or_load`, by name
        self._shelf = Shelf(store)
        self._room = Room(
            registry, ledger, self._hosted_models, self._is_wanted, self._under_way if store.is_named else None
        )
        self._idle = IdleWatch(idle_s, self._room.may_leave, self._let_go)
        self._looking: asyncio.Task[None] | None = None
        self._is_syncing = False
        self._must_hurry = asyncio.Event()  # set by `close`: do not wait for running calls
        self._recovery = Recovery(
            policy or FailurePolicy(), self._hosted_models, self._begin_recovery, self._noted_progress, registry.give_up
        )

    # --- the process --------------------------------------------------------------------------------------------------

    async def start(self, configs: Sequence[Config]) -> list[Built]:
        """Load the operator's models, which share the memory, one by one, and serve each as soon as it is ready."""
        all_built: list[Built] = []
        await self._look()
        for config, share_bytes in zip(configs, split_memory(configs), strict=True):
            wanted = await asyncio.to_thread(self._describe, config, str(config.directory), is_start=True)
            memory_bytes = share_bytes
            if memory_bytes is None and config.server.memory_gb is not None:
                memory_bytes = max(0, self._ledger.available_bytes() - wanted.needs.weights - wanted.needs.drafts)
            if memory_bytes is not None:  # a single model may be loading already, and reports by itself
                check_room(config.name, wanted.needs, self._ledger.available_bytes())
            share = self._ledger.available_bytes() if memory_bytes is None else memory_bytes
            holding = self._ledger.reserve(wanted.name, _estimate(wanted.needs, share), is_forced=True)
            all_built.append(await self._bring_up(Hosted(wanted, holding), memory_bytes))
        return all_built

    async def close(self) -> None:
        """End every model at once: abandon loads, fail running calls. Drain calls before."""
        self._must_hurry.set()
        self._idle.close()
        await self._recovery.close()
        operations = {operation.task: operation for operation in self._operations.values()}
        for task, operation in operations.items():
            if operation.word != _UNLOADED:
                task.cancel()
        await asyncio.gather(*operations, *self._leaving, return_exceptions=True)
        await asyncio.gather(*(_stop(hosted.built) for hosted in self._hosted.values() if hosted.built is not None))

    # --- operations ---------------------------------------------------------------------------------------------------

    async def load(self, source: ModelSource) -> ModelStatus:
        wanted = await self._resolve(source)
        return await asyncio.shield(self._begin_load(wanted))

    async def unload(self, name: str) -> None:
        self._check_open()
        if self._forget_dropped(name):
            return
        hosted = self._find(name)
        self._check_claims(hosted.names)
        if hosted.state is ModelState.FAILED:
            del self._hosted[hosted.name]
            return
        if hosted.is_pinned:
            raise Conflict(f"Model {hosted.name} is pinned; unpin it first", param="model")
        await asyncio.shield(self._begin_unload(hosted))

    async def replace(self, source: ModelSource) -> ModelStatus:
        wanted = await self._resolve(source)
        return await asyncio.shield(self._begin_replace(wanted))

    def pin(self, name: str) -> None:
        hosted = self._find(name)
        if hosted.state is not ModelState.READY:
            raise NotFound(f"Model {hosted.name} is {hosted.state}, so it cannot be pinned", param="model")
        hosted.is_pinned = True

    def unpin(self, name: str) -> None:
        hosted = self._find(name)
        hosted.is_pinned = False
        self._idle.look_at(hosted)

    async def look(self) -> None:
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="look into the models directory")
            self._looking.add_done_callback(self._end_look)
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        if self._store.is_named:
            self._registry.note_stored(await asyncio.to_thread(self._shelf.models))

    def _end_look(self, task: asyncio.Task[None]) -> None:
        self._looking = None

    def keep(self, model: ServedModel, seconds: float | None) -> None:
        hosted = self._hosted.get(model.name)
        if hosted is not None and hosted.built is not None and hosted.built.served is model:
            self._idle.keep(hosted, seconds)

    @asynccontextmanager
    async def get_or_load(self, name: str) -> AsyncIterator[ServedModel]:
        self._num_callers[name] = self._num_callers.get(name, 0) + 1
        try:
            while (model := self._registry.get(name)) is None:
                await self._bring(name)
            visit = model.admission.visit()
            visit.__enter__()  # before the first await, or the model could be dropped as unwanted
        finally:
            self._num_callers[name] -= 1
            if not self._num_callers[name]:
                del self._num_callers[name]
        try:
            yield model
        finally:
            visit.__exit__(None, None, None)

    def status(self, name: str) -> ModelStatus:
        return self._find(name).status()

    def statuses(self) -> tuple[ModelStatus, ...]:
        order = {model.name: number for number, model in enumerate(self._registry.models)}
        hosted = sorted(self._hosted.values(), key=lambda model: order.get(model.name, len(order)))
        return tuple(model.status() for model in hosted)

    def stored(self) -> tuple[ModelSource, ...]:
        if self._store.is_named:  # calls load them
            return ()
        return tuple(ModelSource(str(entry.directory.absolute()), entry.name) for entry in self._store.entries())

    async def sync(self, sources: Sequence[ModelSource]) -> SyncResult:
        self._check_open()
        if self._is_syncing:
            raise Conflict("The models are already being reloaded")
        self._is_syncing = True
        try:
            plan = await self._plan(sources)
            self._check_plan(plan)
            return await self._carry_out(plan)
        finally:
            self._is_syncing = False

    # --- what is wanted -----------------------------------------------------------------------------------------------

    async def _resolve(self, source: ModelSource) -> Wanted:
        self._check_open()
        wanted = await told(asyncio.to_thread(self._describe_source, source), source.name or source.url)
        self._check_open()
        return wanted

    def _describe_source(self, source: ModelSource) -> Wanted:
        entry = self._store.entry(source.url, source.name, source.version)
        return self._describe(self._store.config(entry, source.options), str(entry.directory))

    def _describe_stored(self, name: str) -> Wanted:
        for dropped in list(self._dropped.values()):
            if name in dropped.names:
                return self._describe(dropped.config, dropped.url)
        entry = self._store.named(name)
        return self._describe(self._store.config(entry, {}), str(entry.directory))

    def _describe(self, config: Config, url: str, *, is_start: bool = False) -> Wanted:
        """The facts about a model before its load, from its files; on a worker thread. Raises: as `ModelBuilder.needs`."""
        try:
            needs = self._builder.needs(config)
        except (ConfigError, ModelError, OSError):
            if not is_start:
                raise
            needs = MemoryNeeds(0)  # building reports the problem
        if not is_start:
            for notice in config.notices:
                logger.info("model %s: %s", config.name, notice)
        return Wanted(config, url, needs, identity(config), weights_bytes(config))

    # --- names --------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._registry.state is ServerState.LOADING:
            raise Unavailable("The server is still loading; try again later", retry_after_s=5)
        if self._must_hurry.is_set() or self._registry.state is not ServerState.READY:
            raise Unavailable("The server is shutting down and neither loads nor unloads models")

    def _find(self, name: str) -> Hosted:
        """The model of that name or alias, preferably one that has not FAILED. Raises: NotFound."""
        found = self._hosted.get(name) or next((model for model in self._hosted.values() if name in model.names), None)
        if found is None:
            known = ", ".join(self._hosted) or "none"
            raise NotFound(f"Model or workflow not found: {name} (there are: {known})", param="model")
        return found

    def _check_claims(self, names: Iterable[str]) -> None:
        for name in names:
            if operation := self._operations.get(name):
                raise Conflict(f"Model {name} is being {operation.word}; try again later", param="model")

    def _check_names(self, names: Iterable[str], instead_of: Hosted | None = None) -> None:
        """Raises: Conflict if one of the names is served already, except by the replaced model."""
        for name in names:
            served = self._registry.get(name)
            is_own = instead_of is not None and instead_of.built is not None and served is instead_of.built.served
            if served is not None and not is_own:
                raise Conflict(f"Model {name} is already loaded, as {served.name} from {served.url}", param="model")

    def _begin(
        self, names: Iterable[str], word: str, work: Coroutine[Any, Any, T], *, is_on_demand: bool = False
    ) -> asyncio.Task[T]:
        """Start `work` as the operation on these names; it frees them before its end is visible."""
        task = asyncio.create_task(work, name=f"{word}: {', '.join(names)}")
        self._operations.update(dict.fromkeys(names, _Operation(task, word, is_on_demand)))
        task.add_done_callback(self._end_operation)
        return task

    def _end_operation(self, task: asyncio.Task[Any]) -> None:
        self._operations = {
            name: operation for name, operation in self._operations.items() if operation.task is not task
        }
        if not task.cancelled():
            task.exception()  # waiters have it; without any it was logged

    # --- engines that have died ---------------------------------------------------------------------------------------

    def _hosted_models(self) -> Iterable[Hosted]:
        return self._hosted.values()

    def _begin_recovery(self, hosted: Hosted, work: Coroutine[Any, Any, None]) -> None:
        if any(name in self._operations for name in hosted.names) or self._must_hurry.is_set():
            work.close()
        else:
            self._begin(hosted.names, "restarted", self._recover(hosted, work))

    async def _recover(self, hosted: Hosted, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._registry.expect_no_more(hosted.name)  # its progress is outdated

    # --- loading ------------------------------------------------------------------------------------------------------

    def _begin_load(self, wanted: Wanted) -> asyncio.Task[ModelStatus]:
        """Raises: Conflict, NoMemory; nothing has changed then."""
        self._check_claims(wanted.names)
        self._check_names(wanted.names)
        hosted, memory_bytes = self._make_room(wanted, ())
        return self._begin(wanted.names, "loaded", told(self._load(hosted, memory_bytes), wanted.name))

    def _make_room(self, wanted: Wanted, leaving: Sequence[Holding]) -> tuple[Hosted, int]:
        """The model with its place in the ledger, and its bytes besides the weights. Raises: NoMemory."""
        needs = wanted.needs
        self._ledger.check(wanted.name, needs.least, leaving)
        memory_bytes = max(0, self._ledger.available_bytes(leaving) - needs.weights - needs.drafts)
        return Hosted(wanted, self._ledger.reserve(wanted.name, _estimate(needs, memory_bytes), leaving)), memory_bytes

    async def _load(self, hosted: Hosted, memory_bytes: int | None) -> ModelStatus:
        await self._bring_up(hosted, memory_bytes)
        return hosted.status()

    async def _bring_up(self, hosted: Hosted, memory_bytes: int | None) -> Built:
        """Build the model and serve it. Raises: the builder's error, after freeing the model's place."""
        self._forget_failures(hosted.name)
        self._hosted[hosted.name] = hosted
        self._registry.expect(hosted.name)
        try:
            built = await self._build(hosted, memory_bytes)
            self._registry.add(built.served)
        except BaseException as error:
            self._registry.expect_no_more(hosted.name)
            self._give_up(hosted, error)
            raise
        hosted.become_ready(built)
        self._idle.keep(hosted, None)
        self._recovery.start()
        self._set_dropped({name: other for name, other in self._dropped.items() if name != hosted.name})
        return built

    async def _build(self, hosted: Hosted, memory_bytes: int | None) -> Built:
        begin_s = perf_counter()
        try:
            built = await self._builder.build(hosted.wanted.config, self._noted_progress(hosted), memory_bytes)
        except Exception:
            self._registry.loads.failed(hosted.name)
            raise
        self._registry.loads.loaded(hosted.name, perf_counter() - begin_s)
        if built.memory is not None:
            self._ledger.correct(hosted.holding, built.memory)
        return built

    def _noted_progress(self, hosted: Hosted) -> Progress:
        return noted_progress(self._registry, hosted.name, hosted.wanted.bytes_total, self._progress(hosted.name))

    def _give_up(self, hosted: Hosted, error: BaseException) -> None:
        self._ledger.release(hosted.holding)
        hosted.fail(error)
        if isinstance(error, asyncio.CancelledError) or self._hosted.get(hosted.name) is not hosted:
            self._hosted = {name: other for name, other in self._hosted.items() if other is not hosted}

    def _forget_failures(self, name: str) -> None:
        failed = [model for model in self._hosted.values() if model.state is ModelState.FAILED]
        for model in [
            *failed[: max(0, len(failed) - MAX_FAILED + 1)],
            *(model for model in failed if model.name == name),
        ]:
            self._hosted.pop(model.name, None)

    # --- loading on demand --------------------------------------------------------------------------------------------

    async def _bring(self, name: str) -> None:
        """Wait until `name` may be served: after its load, or after another operation on it. Raises: as `get_or_load`."""
        self._check_open()
        operation = self._operations.get(name)
        if operation is None:
            work = told(self._load_stored(name), name)
            operation = _Operation(self._begin((name,), "loaded", work, is_on_demand=True), "loaded", True)
        if operation.is_on_demand:
            await asyncio.shield(operation.task)
        else:
            await asyncio.wait((operation.task,))

    async def _load_stored(self, name: str) -> None:
        wanted = await asyncio.to_thread(self._describe_stored, name)
        operation = self._operations[name]
        others = [other for other in wanted.names if self._operations.get(other) is not operation]
        self._check_open()
        self._check_claims(others)
        self._check_names(wanted.names)
        leaving = await self._room.made_for(wanted.needs.least)
        self._check_open()
        self._check_claims(others)
        self._check_names(wanted.names)
        hosted, memory_bytes = self._make_room(wanted, [model.holding for model in leaving])
        self._operations.update(dict.fromkeys(others, operation))
        try:
            await asyncio.gather(*(asyncio.shield(self._begin_drop(model)) for model in leaving))
        except BaseException:
            self._ledger.release(hosted.holding)
            raise
        await self._bring_up(hosted, memory_bytes)

    def _is_wanted(self, hosted: Hosted) -> bool:
        return any(name in self._num_callers or name in self._operations for name in hosted.names)

    def _under_way(self) -> list[asyncio.Task[Any]]:
        changing = [
            model for model in self._hosted.values() if model.state in (ModelState.LOADING, ModelState.UNLOADING)
        ]
        return [self._operations[model.name].task for model in changing if model.name in self._operations]

    def _let_go(self, hosted: Hosted) -> None:
        if not self._must_hurry.is_set():
            logger.info("model %s gives its memory back until a call names it", hosted.name)
            self._begin_drop(hosted)

    def _begin_drop(self, hosted: Hosted) -> asyncio.Task[None]:
        assert hosted.built is not None  # it is READY
        self._shelf.note_card(hosted.name, hosted.built.served.profile.card)
        self._set_dropped({**self._dropped, hosted.name: hosted.wanted})
        return self._begin_unload(hosted, is_dropped=True)

    def _forget_dropped(self, name: str) -> bool:
        found = [] if name in self._operations else [model for model in self._dropped.values() if name in model.names]
        self._set_dropped({name: model for name, model in self._dropped.items() if model not in found})
        return bool(found)

    def _set_dropped(self, dropped: dict[str, Wanted]) -> None:
        self._dropped = dropped
        self._registry.note_dropped(self._shelf.dropped(model) for model in dropped.values())

    # --- replacing ----------------------------------------------------------------------------------------------------

    def _begin_replace(self, wanted: Wanted) -> asyncio.Task[ModelStatus]:
        """Raises: NotFound, Conflict, NoMemory; nothing has changed then."""
        old = self._hosted.get(wanted.name)
        if old is None or (old.state is not ModelState.READY and wanted.name not in self._operations):
            raise NotFound(f"Model or workflow not found: {wanted.name} is not loaded", param="model")
        names = tuple(dict.fromkeys((*old.names, *wanted.names)))
        self._check_claims(names)
        self._check_names(wanted.names, old)
        new, memory_bytes = self._make_room(wanted, ())
        old.is_replacing = True
        return self._begin(names, "replaced", told(self._change_over(old, new, memory_bytes), wanted.name))

    async def _change_over(self, old: Hosted, new: Hosted, memory_bytes: int) -> ModelStatus:
        assert old.built is not None  # it is READY, and has no other operation
        try:
            built = await self._build(new, memory_bytes)
            self._registry.replace(old.built.served, built.served)
        except BaseException as error:
            self._registry.expect_no_more(new.name)
            self._give_up(new, error)
            old.is_replacing = False
            raise
        new.is_pinned = old.is_pinned
        new.become_ready(built)
        self._idle.keep(new, None)
        self._hosted = {name: new if model is old else model for name, model in self._hosted.items()}
        ending = asyncio.create_task(self._finish(old), name=f"finish the calls of the old {old.name}")
        self._leaving[ending] = old
        ending.add_done_callback(self._leaving.pop)
        return new.status()

    # --- unloading ----------------------------------------------------------------------------------------------------

    def _begin_unload(self, hosted: Hosted, *, is_dropped: bool = False) -> asyncio.Task[None]:
        """Hide the model from new calls; the task ends when the model is gone. `is_dropped`: a call loads it again."""
        assert hosted.built is not None  # it is READY, and has no other operation
        hosted.state = ModelState.UNLOADING
        self._registry.retire(hosted.built.served, is_dropped=is_dropped)
        self._idle.forget(hosted)
        hosted.built.served.admission.drain("The model is being unloaded")
        return self._begin(hosted.names, _UNLOADED, self._unload(hosted))

    async def _unload(self, hosted: Hosted) -> None:
        await self._finish(hosted)
        self._hosted = {name: other for name, other in self._hosted.items() if other is not hosted}

    async def _finish(self, hosted: Hosted) -> None:
        assert hosted.built is not None
        idle = asyncio.create_task(hosted.built.served.admission.wait_idle())
        hurry = asyncio.create_task(self._must_hurry.wait())
        await asyncio.wait((idle, hurry), timeout=self._drain_s, return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            logger.warning("aborting the requests to model %s that did not finish in time", hosted.name)
        idle.cancel()
        hurry.cancel()
        await self._end(hosted)

    async def _end(self, hosted: Hosted) -> None:
        built, hosted.built = hosted.built, None
        assert built is not None
        try:
            await _stop(built)
            self._registry.forget(built.served)
            await asyncio.to_thread(built.close)
            del built
            await asyncio.to_thread(give_back)
        finally:
            self._ledger.release(hosted.holding)

    # --- reconciliation -----------------------------------------------------------------------------------------------

    async def _plan(self, sources: Sequence[ModelSource]) -> Plan:
        wanted: list[Wanted] = []
        failures: dict[str, str] = {}
        for source in sources:
            try:
                wanted.append(await self._resolve(source))
            except (InvalidRequest, NotFound) as error:
                failures[source.name or Path(source.url).name] = error.message
        return make_plan(
            wanted, failures, [model for model in self._hosted.values() if model.state is ModelState.READY]
        )

    def _check_plan(self, plan: Plan) -> None:
        """Raises: NoMemory if the whole does not fit, step by step; nothing has changed then."""
        taken = 0
        gone = [model.holding for model in plan.gone]
        for old, new in plan.changed:
            self._ledger.check(new.name, taken + new.needs.least, gone)
            taken += new.needs.least - old.holding.num_bytes
        for new in plan.new:
            taken += new.needs.least
            self._ledger.check(new.name, taken, gone)

    async def _carry_out(self, plan: Plan) -> SyncResult:
        failures = dict(plan.failures)
        self._set_dropped({})  # wanted models are loaded now, and others must not come back
        unloaded = [model.name for model in plan.gone if await tried(self.unload(model.name), model.name, failures)]
        replaced = []
        for old, new in plan.changed:
            if await tried(self._replace_and_wait(old, new), new.name, failures):
                replaced.append(new.name)
        loaded = [model.name for model in plan.new if await tried(self._load_described(model), model.name, failures)]
        return SyncResult(tuple(loaded), tuple(replaced), tuple(unloaded), plan.unchanged, failures)

    async def _load_described(self, wanted: Wanted) -> None:
        self._check_open()
        await asyncio.shield(self._begin_load(wanted))

    async def _replace_and_wait(self, old: Hosted, wanted: Wanted) -> None:
        """Replace, and wait until the old model has freed its memory, as the next one may need it."""
        self._check_open()
        await asyncio.shield(self._begin_replace(wanted))
        endings = [task for task, model in self._leaving.items() if model is old]
        if endings:
            await asyncio.wait(endings)


_UNLOADED = "unloaded"


async def _stop(built: BuiltModel) -> None:
    try:
        await built.served.engine.shutdown(0.0)
    except Exception:  # an engine whose end fails must not keep its place
        logger.exception("the engine of model %s did not stop cleanly", built.served.name)
    try:
        async with asyncio.timeout(ABORT_WAIT_S):
            await built.served.admission.wait_idle()
    except TimeoutError:
        logger.warning("calls to model %s hold on to it after its end", built.served.name)


def _estimate(needs: MemoryNeeds, memory_bytes: int) -> ModelMemory:
    return ModelMemory(needs.weights, cache_bytes(needs, memory_bytes), needs.drafts)
