"""Makes the engine of a model on several memory nodes (--numa): a process for each, and the engine in front."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dragoman.config.resolve import Config
from dragoman.cores import CoreError, Placement, Topology, applied, parse_cores, parse_nodes, place, read_topology
from dragoman.engine.base import EngineTools, MemoryNeeds
from dragoman.engine.factory import BuiltEngine, EngineFactory, EngineOptionError, EngineSetup
from dragoman.nodes.engine import Node, NodesEngine
from dragoman.nodes.process import NodePlan, NodeProcess, NodeProcesses, Report, node_plan


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
        one = self._inner.needs(replace(setup.of_one_in(count), options=options))
        return MemoryNeeds(one.weights * count, one.drafts * count, one.least_cache * count, one.useful_cache * count)

    def load(self, setup: EngineSetup) -> LoadedNodes:
        """Raises: the error of one of the processes, after ending all."""
        placements = self._placements
        plans = [
            node_plan(self._config, placement, number, len(placements), shares=setup.has_neighbours)
            for number, placement in enumerate(placements)
        ]
        processes = NodeProcesses()
        try:
            started = [processes.start(plan) for plan in plans]
            _wait_all(started, setup.progress)
        except BaseException:
            processes.close()
            raise
        return LoadedNodes(plans, processes, started)


def _wait_all(started: Sequence[NodeProcess], report: Report) -> None:
    """Wait until all have loaded, and report the first one's progress. Raises: the first error."""
    told: queue.Queue[tuple[int, str, float] | BaseException | None] = queue.Queue()

    def wait(number: int, process: NodeProcess) -> None:
        try:
            process.wait_loaded(lambda stage, fraction: told.put((number, stage, fraction)))
        except BaseException as error:
            told.put(error)
        else:
            told.put(None)

    for number, process in enumerate(started):
        threading.Thread(target=wait, args=(number, process), name=f"load-{process.plan.name}", daemon=True).start()
    num_loaded = 0
    while num_loaded < len(started):
        message = told.get()
        if isinstance(message, BaseException):
            raise message
        if message is None:
            num_loaded += 1
        elif message[0] == 0:
            report(*message[1:])


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
        length = min(one.description.capabilities.max_model_len for one in built)
        capabilities = replace(described.capabilities, max_model_len=length, cache_key=len(built) > 1)
        nodes = [Node(plan) for plan in self.plans]
        engine = NodesEngine(capabilities, nodes, list(self.started), self.processes, share)
        return BuiltEngine(
            engine,
            (*described.facts, f"{len(nodes)} engines: {', '.join(str(plan.placement) for plan in self.plans)}"),
            described.dtype,
            sum(one.cache_bytes for one in built),
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
