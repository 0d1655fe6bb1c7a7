"""The process of one memory node: an engine on the node's cores, for requests of the server in front.

python -m dragoman.cli.node_process FD KERNELS HTTP

Loads the model and runs requests; handles no HTTP and no text. Started by `dragoman.nodes`, which has the other end of
the socket FD; when that closes, this process ends. The runtime is imported after the cores are chosen.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from dragoman.config.resolve import ConfigError
from dragoman.cores import Placement, apply, parse_cores
from dragoman.engine.base import TellingProgress, deliver
from dragoman.engine.spread import Description, Failure
from dragoman.errors import EngineFailed, ServerError
from dragoman.logs import BackgroundWriter, OperatorFormatter, start_logging
from dragoman.nodes.messages import (
    AskProgress,
    Build,
    Built,
    Cancel,
    ChangeAdapter,
    Changed,
    Gauged,
    Generate,
    Load,
    Loaded,
    Loading,
    Refused,
    Replied,
    ToldProgress,
    packed,
    read,
    receive,
)
from dragoman.types import EngineOutput

if TYPE_CHECKING:
    from dragoman.engine.base import AdapterLoading, Engine, Health
    from dragoman.host.loading import ModelLoad

GAUGES_S = 0.25  # between two checks of the engine


def main(words: list[str]) -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    descriptor, kernels, http = words
    apply(Placement(parse_cores(kernels), parse_cores(http)))
    link, log = socket.socket(fileno=int(descriptor)), BackgroundWriter(sys.stderr)
    try:
        load = read(link)
        assert isinstance(load, Load)
        server = load.config.server
        formatter = OperatorFormatter(shows_values=server.log_prompts, name=load.name)
        start_logging(log, formatter, server.log_level)
        _run(link, load)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the server in front is gone
        pass
    # Do not wait for the runtime's threads or an unwanted load.
    log.drain()
    os._exit(0)


def _run(link: socket.socket, load: Load) -> None:
    """Load the model, and run requests to the end. Raises: EOFError, OSError if the server in front is gone."""
    from dragoman.host.loading import ModelLoad  # imports the runtime
    from dragoman.models.memory import bound_arenas

    bound_arenas()
    sending = threading.Lock()

    def send(message: object) -> None:
        with sending:
            link.sendall(packed(message))

    def report(stage: str, fraction: float) -> None:
        send(Loading(stage, fraction))

    loading = ModelLoad(load.config, report, has_neighbours=load.shares, has_room=True, num_nodes=load.num_nodes)

    def tell() -> None:
        loading.wait()
        with suppress(OSError):  # the main thread raises it
            send(Loaded())  # loaded or failed: building reports it

    threading.Thread(target=tell, name="tell", daemon=True).start()
    build = read(link)  # here, to notice the server's end while the model loads
    assert isinstance(build, Build)
    asyncio.run(_serve(link, load, loading, build))


async def _serve(link: socket.socket, load: Load, loading: ModelLoad, build: Build) -> None:
    from dragoman.compose import build_served_model
    from dragoman.models import ModelError

    reader, writer = await asyncio.open_unix_connection(sock=link)
    try:
        composed = await build_served_model(load.config, lambda _stage, _fraction: None, build.memory_bytes, loading)
    except Exception as error:  # the server in front reports any error of loading
        if isinstance(error, ConfigError):
            refused = Refused(error.problems, is_config=True)
        else:
            reason = str(error) if isinstance(error, ModelError) else f"{type(error).__name__}: {error}"
            refused = Refused((reason,), is_config=False)
        writer.write(packed(refused))
        await writer.drain()
        return
    served, memory = composed.served, composed.memory
    description = Description(served.engine.capabilities, composed.facts, served.dtype, composed.pictures)
    writer.write(packed(Built(description, 0 if memory is None else memory.caches)))
    adapters = None if composed.renewal is None else composed.renewal.engine
    try:
        await NodeRequests(served.engine, adapters, writer).run(reader)
    finally:
        await served.engine.shutdown(0.0)


class NodeRequests:
    """Passes the server's requests to a started engine, and answers back. `adapters`: if the engine can load adapters."""

    def __init__(self, engine: Engine, adapters: AdapterLoading | None, writer: asyncio.StreamWriter) -> None:
        self._engine = engine
        self._adapters = adapters
        self._writer = writer
        self._running: dict[int, asyncio.Task[None]] = {}
        self._changing: set[asyncio.Task[None]] = set()
        self._gauges: Gauged | None = None  # the last report
        self._items: list[tuple[int, EngineOutput | Failure | None]] = []

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Answer until the server in front is gone, or the engine is dead."""
        listening = asyncio.create_task(self._listen(reader))
        watching = asyncio.create_task(self._watch())
        try:
            await asyncio.wait((listening, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = (listening, watching, *self._running.values(), *self._changing)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while True:
            message = await receive(reader)
            match message:
                case Generate(key):
                    self._running[key] = asyncio.create_task(self._generate(key, message))
                case Cancel(key):
                    if key in self._running:
                        self._running[key].cancel()
                case AskProgress():
                    self._begin(self._tell_progress(message))
                case ChangeAdapter():
                    self._begin(self._change(message))
                case _:  # Stop
                    return

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)

    async def _tell_progress(self, question: AskProgress) -> None:
        if not isinstance(self._engine, TellingProgress):
            return
        progress = self._engine.progress(question.request_id)
        if progress is None:  # the engine notices the request for progress
            await asyncio.sleep(GAUGES_S)
            progress = self._engine.progress(question.request_id)
        self._writer.write(packed(ToldProgress(question.key, progress)))

    async def _watch(self) -> None:
        """Report the engine's health after each change; returns when it has died and that is reported."""
        while True:
            if not self._tell().is_alive:
                await asyncio.gather(*self._running.values(), return_exceptions=True)
                self._flush()
                await self._writer.drain()
                return
            await asyncio.sleep(GAUGES_S)

    async def _generate(self, key: int, order: Generate) -> None:
        try:
            await deliver(self._engine, order.request, partial(self._take, key))
        except ServerError as error:
            self._put(key, Failure(error, ""))
        except Exception as error:  # a defect; only this request fails
            self._put(key, Failure(EngineFailed(f"{type(error).__name__}: {error}"), ""))
            raise
        else:
            self._put(key, None)
        finally:
            self._running.pop(key, None)

    def _take(self, key: int, output: EngineOutput) -> bool:
        self._put(key, output)
        return True

    def _put(self, key: int, item: EngineOutput | Failure | None) -> None:
        """Send with everything else of this turn of the loop: a step's outputs are one message."""
        if not self._items:
            asyncio.get_running_loop().call_soon(self._flush)
        self._items.append((key, item))

    def _flush(self) -> None:
        items, self._items = self._items, []
        if any(not isinstance(item, EngineOutput) for _, item in items):  # totals arrive no later than answers
            self._tell()
        if items:
            self._writer.write(packed(Replied(tuple(items))))

    def _tell(self) -> Health:
        gauges = Gauged(self._engine.health(), self._engine.stats())
        if gauges != self._gauges:
            self._gauges = gauges
            self._writer.write(packed(gauges))
        return gauges.health

    async def _change(self, change: ChangeAdapter) -> None:
        error = None
        assert self._adapters is not None  # otherwise changes are never requested
        try:
            if change.directory is not None:
                await self._adapters.load_adapter(change.name, change.directory, is_replacing=change.is_replacing)
            else:
                await self._adapters.unload_adapter(change.name)
        except Exception as raised:  # the server in front reports it to the caller
            error = raised
        self._writer.write(packed(Changed(change.number, error, self._engine.capabilities.adapters)))


if __name__ == "__main__":
    main(sys.argv[1:])
