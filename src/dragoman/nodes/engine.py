"""The engine of a model on several memory nodes (--numa): a process for each node, and the engine in front.

The factory works on the loading thread; the engine on the event loop, `health` and `stats` on any thread. The engine
sends each request to the node with its prompt's beginning, unless that is busy, and lives while one node is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from dragoman.config.resolve import Config
from dragoman.cores import CoreError, Placement, Topology, applied, parse_cores, parse_nodes, place, read_topology
from dragoman.engine.affinity import preferred, prefix_key
from dragoman.engine.base import (
    DEATHS,
    Capabilities,
    EngineStats,
    EngineTools,
    Health,
    MemoryNeeds,
    PromptProgress,
    UpstreamHealth,
)
from dragoman.engine.factory import BuiltEngine, EngineFactory, EngineOptionError, EngineSetup
from dragoman.engine.spread import Failure, ReplicaLost, Replies, SpreadEngine
from dragoman.errors import EngineDead, ServerError
from dragoman.nodes.messages import (
    AskProgress,
    Built,
    Cancel,
    ChangeAdapter,
    Changed,
    Gauged,
    Generate,
    Replied,
    Stop,
    ToldProgress,
    packed,
    receive,
)
from dragoman.nodes.process import LEAVE_S, NodePlan, NodeProcess, NodeProcesses, node_plan
from dragoman.types import EngineOutput, EngineRequest

logger = logging.getLogger("dragoman.nodes")

FIRST_PAUSE_S = 0.5  # before a process is restarted; doubled each time
LAST_PAUSE_S = 30.0

_Item = EngineOutput | Failure | ReplicaLost | None


def node_placements(numa: str, http_cores: str, topology: Topology) -> tuple[Placement, ...]:
    """Raises: CoreError if the options do not fit the machine."""
    nodes = topology.nodes if numa == "auto" else parse_nodes(numa)
    for cores in nodes:
        if not cores <= topology.allowed:
            place(topology, kernels=cores)
    if http_cores not in ("auto", "shared"):
        http = parse_cores(http_cores)
        place(topology, http=http)
        if not all(cores - http for cores in nodes):
            raise CoreError("http_cores", "must leave at least one core to each node")
        return tuple(Placement(cores - http, http) for cores in nodes)
    placements = []
    for cores in nodes:
        placed = place(replace(topology.within(cores), quota=None), is_split=http_cores == "auto")
        placements.append(Placement(placed.kernels or cores, placed.http or cores))
    return tuple(placements)


def placements_of(config: Config) -> tuple[Placement, ...]:
    """Raises: EngineOptionError if the options do not fit the machine."""
    try:
        return applied().nodes or node_placements(config.server.numa, config.server.http_cores, read_topology())
    except CoreError as error:
        raise EngineOptionError("numa" if error.option == "cores" else error.option, str(error)) from error


class NodesFactory:
    """`inner`: the factory of each node's engine; `placements`: of the nodes."""

    def __init__(self, config: Config, inner: EngineFactory, placements: Sequence[Placement]) -> None:
        self._config = config
        self._inner = inner
        self._placements = placements

    def needs(self, setup: EngineSetup) -> MemoryNeeds:
        count, options = len(self._placements), dict(setup.options)
        if options.get("kv_cache_gb") is not None:
            options["kv_cache_gb"] /= count
        needs = self._inner.needs(replace(setup.of_one_in(count), options=options))
        return MemoryNeeds(
            needs.weights * count, needs.drafts * count, needs.least_cache * count, needs.useful_cache * count
        )

    def load(self, setup: EngineSetup) -> LoadedNodes:
        """Raises: the error of one of the processes, after ending all."""
        placements = self._placements
        plans = [
            node_plan(self._config, placement, number, len(placements), shares=setup.has_neighbours)
            for number, placement in enumerate(placements)
        ]
        processes = NodeProcesses()
        with ThreadPoolExecutor(len(plans), "load-node") as waiting:
            try:
                started = [processes.start(plan) for plan in plans]
                reports = [setup.progress, *[_no_report] * (len(plans) - 1)]  # the first one's progress stands for all
                loads = [
                    waiting.submit(node.wait_loaded, report) for node, report in zip(started, reports, strict=True)
                ]
                for load in as_completed(loads):
                    load.result()
            except BaseException:
                processes.close()  # which ends the waiting, too
                raise
        return LoadedNodes(plans, processes, started)


def _no_report(stage: str, fraction: float) -> None: ...


@dataclass(frozen=True, slots=True)
class LoadedNodes:
    plans: Sequence[NodePlan]
    processes: NodeProcesses
    started: Sequence[NodeProcess]

    def build(self, tools: EngineTools, memory_bytes: int) -> BuiltEngine:
        """Raises: the error of a node."""
        share = memory_bytes // len(self.plans)
        try:
            built = [process.build(share) for process in self.started]
        except BaseException:
            self.processes.close()
            raise
        described = built[0].description
        length = min(node.description.capabilities.max_model_len for node in built)
        capabilities = replace(described.capabilities, max_model_len=length, cache_key=len(built) > 1)
        nodes = [Node(plan) for plan in self.plans]
        engine = NodesEngine(capabilities, nodes, list(self.started), self.processes, share)
        return BuiltEngine(
            engine,
            (*described.facts, f"{len(nodes)} engines: {', '.join(str(plan.placement) for plan in self.plans)}"),
            described.dtype,
            sum(node.cache_bytes for node in built),
            pictures=described.pictures,
            adapters=engine if self.plans[0].config.adapters.enable_lora else None,
        )


def on_nodes(config: Config, inner: EngineFactory, *, can_spread: bool) -> EngineFactory:
    """The factory of a model with --numa; `inner` if there is only one node. Raises: EngineOptionError."""
    placements = placements_of(config)
    if config.server.numa == "auto" and len(placements) == 1:
        return inner
    if not can_spread:
        raise EngineOptionError("numa", "must be off with other engines and with models that embed or score texts")
    return NodesFactory(config, inner, placements)


# --- the engine -------------------------------------------------------------------------------------------------------


@dataclass
class Node:
    """One node. `keys`: keys of its running requests by request id; `progress`: their last reported progress.

    `is_live`: it takes requests. `past`: counters of its former processes.
    """

    plan: NodePlan
    process: NodeProcess | None = None
    writer: asyncio.StreamWriter | None = None
    is_live: bool = False
    replies: dict[int, asyncio.Queue[_Item]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    progress: dict[int, PromptProgress | None] = field(default_factory=dict)
    changes: dict[int, asyncio.Future[tuple[str, ...]]] = field(default_factory=dict)
    health: Health = field(default_factory=lambda: Health(True))
    stats: EngineStats = field(default_factory=EngineStats)
    past: EngineStats = field(default_factory=EngineStats)

    @property
    def name(self) -> str:
        return self.plan.name

    def send(self, message: object) -> None:
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(packed(message))


class NodesEngine(SpreadEngine):
    def __init__(
        self,
        capabilities: Capabilities,
        nodes: Sequence[Node],
        started: Sequence[NodeProcess],
        processes: NodeProcesses,
        memory_bytes: int,
    ) -> None:
        """`started`: a process for each node, in order. `memory_bytes`: of each node's engine."""
        super().__init__(capabilities, self._send_to)
        self._capabilities = capabilities  # nodes report progress
        self._nodes = list(nodes)
        self._started = list(started)
        self._processes = processes
        self._memory_bytes = memory_bytes
        self._numbers = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._adapter_changes: dict[str, tuple[int, Path | None]] = {}  # in order, for processes that start later

    async def start(self) -> None:
        await super().start()
        started, self._started = self._started, []
        for node, process in zip(self._nodes, started, strict=bool(started)):
            await self._attach(node, process)
            node.is_live = True

    async def shutdown(self, drain_s: float) -> None:
        await super().shutdown(drain_s)
        for task in list(self._tasks):
            task.cancel()
        for node in self._nodes:
            node.send(Stop())
        patience_s = LEAVE_S if any(node.writer is not None for node in self._nodes) else 0.0
        await asyncio.to_thread(self._processes.close, patience_s)
        for node in self._nodes:
            self._detach(node, node.process, "the engine was shut down")

    def health(self) -> Health:
        """Requests as counted here, blocks by the nodes' last reports."""
        healths = [node.health for node in self._live()]
        return replace(
            super().health(),
            num_used_blocks=sum(health.num_used_blocks for health in healths),
            num_blocks=sum(health.num_blocks for health in healths),
            upstreams=tuple(UpstreamHealth(node.name, node.is_live, len(node.replies)) for node in self._nodes),
        )

    def stats(self) -> EngineStats:
        total = EngineStats()
        for node in self._nodes:
            total = total.plus(node.past).plus(node.stats)
        return total

    def progress(self, request_id: str) -> PromptProgress | None:
        node = next((node for node in self._nodes if request_id in node.keys), None)
        if node is None:
            return None
        key = node.keys[request_id]
        node.send(AskProgress(key, request_id))
        return node.progress.get(key)

    async def load_adapter(self, name: str, directory: Path, *, is_replacing: bool = False) -> None:
        """On all nodes, or on none."""
        self._life.check_open()
        loaded: dict[NodeProcess | None, Node] = {}
        try:
            await self._change_all(name, directory, loaded, is_replacing=is_replacing)
        except BaseException:
            for process, node in () if is_replacing else loaded.items():
                if node.process is process:
                    with suppress(ReplicaLost):
                        await self._change(node, name, None)
            raise

    async def unload_adapter(self, name: str) -> None:
        await self._change_all(name, None, {})

    # --- requests -----------------------------------------------------------------------------------------------------

    def _send_to(self, request: EngineRequest, avoided: tuple[str, ...]) -> Replies:
        live = self._live()
        if not live:
            raise EngineDead(self._life.death or "no node has a running engine")
        left = [node for node in live if node.name not in avoided] or live
        loads = {node.name: len(node.replies) for node in left}
        chosen = preferred(prefix_key(request), loads)[0]
        return self._replies(next(node for node in left if node.name == chosen), request)

    async def _replies(self, node: Node, request: EngineRequest) -> AsyncGenerator[EngineOutput | Failure, None]:
        """Send the request to the node; yields its outputs. Closing this ends the request there."""
        key, is_over = next(self._numbers), False
        waiting = node.replies[key] = asyncio.Queue()
        node.keys[request.request_id] = key
        node.send(Generate(key, request))
        try:
            while (item := await waiting.get()) is not None:
                is_over = not isinstance(item, EngineOutput)
                if isinstance(item, ReplicaLost):
                    raise item
                yield Failure(item.error, node.name) if isinstance(item, Failure) else item
            is_over = True
        finally:
            if not is_over:
                node.send(Cancel(key))
            del node.replies[key]
            node.progress.pop(key, None)
            if node.keys.get(request.request_id) == key:
                del node.keys[request.request_id]

    def _live(self) -> list[Node]:
        return [node for node in self._nodes if node.is_live]

    async def _change_all(
        self, name: str, directory: Path | None, changed: dict[NodeProcess | None, Node], *, is_replacing: bool = False
    ) -> None:
        """Load or unload an adapter on all nodes; `changed` collects the processes that have done so.

        A node that is lost meanwhile gets the change with its next process, here or in `_catch_up`.
        """
        names = self._capabilities.adapters
        while left := [node for node in self._live() if node.process not in changed]:
            node = left[0]
            process = node.process
            with suppress(ReplicaLost):
                names = await self._change(node, name, directory, is_replacing=is_replacing)
                changed[process] = node
        self._life.check_open()
        self._adapter_changes[name] = next(self._numbers), directory
        self._capabilities = replace(self._capabilities, adapters=names)

    async def _change(
        self, node: Node, name: str, directory: Path | None, *, is_replacing: bool = False
    ) -> tuple[str, ...]:
        """Returns the node's adapters after the change. Raises: ReplicaLost, and the node's errors."""
        if node.process is None:
            raise ReplicaLost(f"{node.name} has no process")
        change = ChangeAdapter(next(self._numbers), name, directory, is_replacing)
        done: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()
        node.changes[change.number] = done
        node.send(change)
        try:
            return await done
        finally:
            node.changes.pop(change.number, None)

    # --- processes ----------------------------------------------------------------------------------------------------

    async def _attach(self, node: Node, process: NodeProcess) -> None:
        reader, node.writer = await asyncio.open_unix_connection(sock=process.link)
        node.process = process
        self._begin(self._listen(node, process, reader))

    def _begin(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, node: Node, process: NodeProcess, reader: asyncio.StreamReader) -> None:
        """Forward a process's messages until it is gone; then replace it, unless `_replace` is already running."""
        try:
            while True:
                message = await receive(reader)
                if node.process is process:
                    _take(node, message)
        except EOFError:  # includes asyncio's incomplete reads
            pass
        except Exception:
            logger.exception("%s cannot be understood, and is ended", node.name)
        was_live = node.process is process and node.is_live
        reason = f"the process of {node.name} (pid {process.pid}) is gone"
        others = [other for other in self._live() if other is not node]
        if was_live and not others and not self._life.is_draining:
            self._life.death = reason
            self._life.stop(EngineDead, reason)
            DEATHS.tell()
        self._detach(node, process, reason)
        await asyncio.to_thread(self._processes.drop, process)
        if self._life.is_draining or not was_live:
            return
        logger.error("%s%s", reason, "" if others else "; no other is left")
        if others:
            self._begin(self._replace(node))

    def _detach(self, node: Node, process: NodeProcess | None, reason: str) -> None:
        """Fail all requests of the node's process. Does nothing if the node has another process, or none."""
        if node.writer is None or node.process is not process:
            return
        node.writer.close()
        node.process, node.writer, node.is_live = None, None, False
        node.past, node.stats, node.health = node.past.plus(node.stats), EngineStats(), Health(False, reason)
        for replies in node.replies.values():
            replies.put_nowait(ReplicaLost(reason))
        for change in node.changes.values():
            if not change.done():
                change.set_exception(ReplicaLost(reason))

    async def _replace(self, node: Node) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._life.death and not self._life.is_draining:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
            try:
                process, _ = await asyncio.to_thread(self._processes.started, node.plan, self._memory_bytes)
                await self._take_in(node, process)
            except Exception as error:  # load boundary: after any error another attempt may succeed
                logger.error("%s has no engine yet: %s", node.name, error)
                continue
            logger.warning("%s has an engine again (pid %d)", node.name, process.pid)
            return

    async def _take_in(self, node: Node, process: NodeProcess) -> None:
        """Give the node a new process. Raises: any error; the process has ended then."""
        try:
            await self._attach(node, process)
            await self._catch_up(node)
            if node.process is not process:
                raise ReplicaLost("its process has ended again")
        except Exception as error:
            self._detach(node, process, str(error))
            await asyncio.to_thread(self._processes.drop, process)
            raise
        node.is_live = True

    async def _catch_up(self, node: Node) -> None:
        """Load the other nodes' adapters into a new process. Raises: ReplicaLost."""
        done: dict[str, tuple[int, Path | None]] = {}
        while left := [change for change in self._adapter_changes.items() if done.get(change[0]) != change[1]]:
            for name, change in left:
                try:
                    await self._change(node, name, change[1], is_replacing=True)
                except ServerError as error:
                    logger.error("adapter %s is not served by %s: %s", name, node.name, error.message)
                done[name] = change


def _take(node: Node, message: object) -> None:
    match message:
        case Replied(items):
            for key, item in items:
                if key in node.replies:  # else it was cancelled
                    node.replies[key].put_nowait(item)
        case ToldProgress(key, progress):
            if key in node.replies:
                node.progress[key] = progress
        case Gauged(health, stats):
            node.health, node.stats = health, stats
        case Changed(number, error, adapters):
            change = node.changes.get(number)
            if change is not None and not change.done():
                if error is None:
                    change.set_result(adapters)
                else:
                    change.set_exception(error)
        case Built():
            pass
        case _:
            raise TypeError(type(message).__name__)
