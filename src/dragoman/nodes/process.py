"""The process of one node: starts on the node's cores, loads, runs an engine, ends. On threads that load models."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from dragoman.config.resolve import Config, ConfigError
from dragoman.cores import Cores, Placement, show_cores
from dragoman.models.config import ModelError
from dragoman.nodes.messages import Build, Built, Load, Loaded, Loading, Refused, packed, read

MODULE = "dragoman.cli.node_process"
LEAVE_S = 10.0  # for a process to end by itself

Report = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The model of a node, and its cores."""

    name: str
    config: Config
    placement: Placement
    num_nodes: int
    shares: bool = False


def node_plan(config: Config, placement: Placement, number: int, count: int, *, shares: bool) -> NodePlan:
    """The plan of one of `count` nodes: each has a part of a fixed cache size, and its own kept files.

    A file's pages stay in the memory of the node that read them first, and kept graphs are computed in place.
    """
    name = f"node{number}"
    model, engine = config.model, config.engine
    if model.cache_dir is not None:
        model = replace(model, cache_dir=model.cache_dir / name)
    if engine.kv_cache_gb is not None:
        engine = replace(engine, kv_cache_gb=engine.kv_cache_gb / count)
    if engine.step_log is not None:
        engine = replace(engine, step_log=engine.step_log.with_name(f"{engine.step_log.name}.{name}"))
    # An operator's code handles texts, so it runs in the server.
    clients = replace(config.clients, hooks=False, output_formatter=None)
    server = replace(config.server, numa="off")
    data = {field: dict(getattr(config, field)) for field in ("origins", "own_options", "engine_options")}
    changed: Any = {"model": model, "engine": engine, "clients": clients, "server": server, **data}
    return NodePlan(name, replace(config, **changed), placement, count, shares)


class NodeProcess:
    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self.link, theirs = socket.socketpair()
        kernels, http = plan.placement.kernels, plan.placement.http
        assert kernels is not None  # every node has its own cores
        assert http is not None
        words = [str(theirs.fileno()), show_cores(kernels), show_cores(http)]
        with theirs, _threads_on(kernels | http):
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, *words],
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__ or subprocess.DEVNULL,  # the server's output is for its banner
                pass_fds=(theirs.fileno(),),
            )
        self.link.sendall(packed(Load(plan.config, plan.name, plan.shares, plan.num_nodes)))

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_loaded(self, report: Report) -> None:
        """Raises: the error of loading; ModelError if the process has ended."""
        while not isinstance(message := self._next(), Loaded):
            if isinstance(message, Loading):
                report(message.stage, message.fraction)

    def build(self, memory_bytes: int) -> Built:
        """Raises: as `wait_loaded`."""
        self.link.sendall(packed(Build(memory_bytes)))
        while not isinstance(message := self._next(), Built):
            pass
        return message

    def _next(self) -> object:
        try:
            message = read(self.link)
        except EOFError:
            raise ModelError(f"the process of {self.plan.name} ended while loading the model") from None
        if isinstance(message, Refused):
            raise ConfigError(message.problems) if message.is_config else ModelError("; ".join(message.problems))
        return message

    def end(self, patience_s: float = 0.0) -> None:
        """Let the process end by itself, else kill it. A second call does nothing."""
        if patience_s:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        self._process.kill()
        self._process.wait()


@contextmanager
def _threads_on(cores: Cores) -> Iterator[None]:
    """Bind the calling thread to these cores within, and so the processes that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class NodeProcesses:
    """The processes of all nodes of one model, for any thread. `close` ends them, and none starts after it."""

    def __init__(self) -> None:
        self._processes: list[NodeProcess] = []
        self._is_closed = False
        self._changed = threading.Lock()

    def start(self, plan: NodePlan) -> NodeProcess:
        """Raises: ModelError after `close`."""
        with self._changed:
            if self._is_closed:
                raise ModelError("the engines of the nodes were shut down")
            process = NodeProcess(plan)
            self._processes.append(process)
        return process

    def started(self, plan: NodePlan, memory_bytes: int) -> tuple[NodeProcess, Built]:
        """A new process with a running engine. Raises: the error of loading, after the process has ended."""
        process = self.start(plan)
        try:
            process.wait_loaded(lambda _stage, _fraction: None)
            return process, process.build(memory_bytes)
        except BaseException:
            self.drop(process)
            raise

    def drop(self, process: NodeProcess) -> None:
        process.end()
        with self._changed:
            if process in self._processes:
                self._processes.remove(process)

    def close(self, patience_s: float = 0.0) -> None:
        with self._changed:
            self._is_closed = True
            processes, self._processes = self._processes, []
        for process in processes:
            process.end(patience_s)
            process.link.close()
