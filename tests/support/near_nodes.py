"""Memory nodes in this process: real engines behind the links that processes of nodes have, and ways to lose them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

from dragoman.cli.node_process import NodeRequests
from dragoman.config.resolve import demo_model_dir, resolve
from dragoman.cores import Placement
from dragoman.engine.base import AdapterLoading, Engine
from dragoman.engine.spread import Description
from dragoman.errors import EngineDead
from dragoman.nodes.engine import Node, NodesEngine
from dragoman.nodes.messages import Built
from dragoman.nodes.process import NodePlan, NodeProcess, NodeProcesses


class NearProcess:
    """What stands for the process of a node: its engine runs on the same event loop."""

    pid = 0

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Answer from now on."""
        self.link, self._theirs = socket.socketpair()
        self._task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=self._theirs)
        await self.engine.start()
        try:
            adapters = cast(AdapterLoading, self.engine) if hasattr(self.engine, "load_adapter") else None
            await NodeRequests(self.engine, adapters, writer).run(reader)
        finally:
            writer.close()
            await self.engine.shutdown(0.0)

    async def lose(self) -> None:
        """End as if the process had been killed."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def ended(self) -> None:
        """Return when nothing of it runs any more."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


class NearProcesses:
    """In the place of `NodeProcesses`. `make` None = no process can be started again."""

    def __init__(self, make: Callable[[], Engine] | None = None) -> None:
        self._make = make
        self._loop: asyncio.AbstractEventLoop | None = None
        self.started_again: list[NearProcess] = []
        self.dropped: list[NearProcess] = []
        self.num_attempts = 0

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Where the engines run that are started again."""
        self._loop = loop

    def started(self, plan: NodePlan, memory_bytes: int) -> tuple[NearProcess, Built]:
        """See `NodeProcesses`."""
        self.num_attempts += 1
        if self._make is None or self._loop is None:
            raise EngineDead("there is no memory left")
        process = NearProcess(self._make())
        self.started_again.append(process)
        asyncio.run_coroutine_threadsafe(_begun(process), self._loop).result()
        return process, Built(Description(process.engine.capabilities, (), ""), 0)

    def drop(self, process: NearProcess) -> None:
        """Note it; whoever is not attached any more ends by itself."""
        self.dropped.append(process)

    def close(self, patience_s: float = 0.0) -> None:
        """Nothing is left to end."""


async def _begun(process: NearProcess) -> None:
    process.begin()


class OnNearNodes(NodesEngine):
    """In front of these engines, each as if it was a node's."""

    def __init__(self, *engines: Engine, again: Callable[[], Engine] | None = None) -> None:
        config = resolve([], {}, demo_model_dir())
        self.near = [NearProcess(engine) for engine in engines]
        self.processes = NearProcesses(again)
        nodes = [Node(NodePlan(f"node{number}", config, Placement(), len(engines))) for number in range(len(engines))]
        started: Any = self.near
        super().__init__(
            engines[0].capabilities,
            nodes,
            cast(list[NodeProcess], list(started)),
            cast(NodeProcesses, self.processes),
            0,
        )
        self._has_begun = False

    async def start(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self.processes.watch(asyncio.get_running_loop())
            for process in self.near:
                process.begin()
        await super().start()

    async def shutdown(self, drain_s: float) -> None:
        await super().shutdown(drain_s)
        for process in (*self.near, *self.processes.started_again):
            await process.ended()
