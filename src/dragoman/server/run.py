"""Runs the HTTP server from bind to exit.

Does: bind the port before the models load, run uvicorn with our protocol, load, drain and stop on signals, end the engines.
Does not: build models or dialects, read options. Called by the command line (`run`) and by tests (`HttpServer` in a thread).
Life: bind -> /ping 503 -> load -> ready -> signal -> /ping 503 -> no new calls, running ones finish -> engines stop -> port
closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import uvicorn

from dragoman.server.app import ServerConfig, build_app
from dragoman.server.hosting import ModelHosting
from dragoman.server.http.protocol import DEFAULT_STALL_TIMEOUT_S, protocol_class
from dragoman.server.registry import ModelRegistry

logger = logging.getLogger("dragoman.server")

Load = Callable[[ModelRegistry], Awaitable[None]]
End = Callable[[], Awaitable[None]]
OnListening = Callable[[str, int], None]

CLOSE_TIMEOUT_S = 5  # after the engines have stopped nothing more can come; this only bounds writes to slow clients


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Where and how to listen. `port` 0 takes a free one. `drain_s`: how long running requests may take to finish.

    `drain_delay_s`: how long calls are still taken after readiness has flipped, for load balancers to see that.
    `keep_alive_s` exceeds the idle time of common load balancers (60 s), so that they, not we, close idle connections.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    drain_s: float = 30.0
    drain_delay_s: float = 0.0
    keep_alive_s: int = 75
    stall_timeout_s: float = DEFAULT_STALL_TIMEOUT_S
    backlog: int = 2048


@dataclass(frozen=True, slots=True)
class ModelOwner:
    """Who owns the models beyond their start.

    `hosting`: who loads and unloads them when clients ask for it; None = they do not come and go. `end` ends all of them
    once their calls have drained; None = the engines of those in the registry are shut down.
    """

    hosting: ModelHosting | None = None
    end: End | None = None


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: it would close the port first, and we drain first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """One server process's HTTP side. `load` adds the models to the registry once the port is open."""

    def __init__(
        self,
        registry: ModelRegistry,
        config: ServerConfig,
        listen: ListenConfig,
        load: Load | None = None,
        on_listening: OnListening | None = None,
        owner: ModelOwner | None = None,
    ) -> None:
        owner = owner or ModelOwner()
        self._registry = registry
        self._end = owner.end or self._stop_engines
        self._listen = listen
        self._load = load
        self._on_listening = on_listening
        self._app = build_app(registry, config, owner.hosting)
        self._uvicorn = _Uvicorn(_uvicorn_config(self._app, listen))
        self._stop: asyncio.Event | None = None
        self._forced = asyncio.Event()  # by a second stop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._num_stops = 0

    async def serve(self) -> int:
        """Serve until `stop`; the exit code: 0, or 1 if loading failed. Raises: OSError if the port cannot be bound."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        listener = bind(self._listen.host, self._listen.port, self._listen.backlog)
        http = asyncio.create_task(self._uvicorn.serve(sockets=[listener]))
        try:
            await self._until_listening(http)
            if self._on_listening is not None:
                host, port = listener.getsockname()[:2]
                self._on_listening(host, port)
            return await self._run_models(http)
        finally:
            await self._shut_down(http)

    def stop(self) -> None:
        """Begin the drain; a second call ends it at once. May be called from any thread and from a signal handler."""
        if self._loop is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop has closed: the server has ended already
            self._loop.call_soon_threadsafe(self._request_stop)

    def _request_stop(self) -> None:
        assert self._stop is not None  # set before the loop is known to `stop`
        self._num_stops += 1
        self._stop.set()
        if self._num_stops > 1:
            self._uvicorn.force_exit = True
            self._forced.set()

    async def _until_listening(self, http: asyncio.Task[None]) -> None:
        """Return once uvicorn accepts; it offers no event for that."""
        while not self._uvicorn.started:
            if http.done():
                http.result()
                raise RuntimeError("the HTTP server ended before it started")
            await asyncio.sleep(0.005)

    async def _run_models(self, http: asyncio.Task[None]) -> int:
        assert self._stop is not None
        stopped = asyncio.create_task(self._stop.wait())
        loading = asyncio.create_task(self._load_models())
        try:
            await asyncio.wait((loading, stopped, http), return_when=asyncio.FIRST_COMPLETED)
            if loading.done() and not loading.result():
                return 1
            await asyncio.wait((stopped, http), return_when=asyncio.FIRST_COMPLETED)
            return 0
        finally:
            for task in (stopped, loading):
                task.cancel()
            await asyncio.gather(stopped, loading, return_exceptions=True)

    async def _load_models(self) -> bool:
        """True once the models are served; a failure is logged with its traceback and reported as False."""
        try:
            if self._load is not None:
                await self._load(self._registry)
            self._registry.mark_ready()
        except Exception as error:  # start-up boundary: whatever a model's loader raises ends the start, told once
            logger.exception("loading failed")
            self._registry.mark_failed(f"{type(error).__name__}: {error}")
            return False
        return True

    async def _shut_down(self, http: asyncio.Task[None]) -> None:
        """Readiness off, let requests finish, stop the engines (which fails the rest), close the port."""
        self._registry.announce_drain()
        await self._wait_for_balancers()
        self._registry.drain()
        await self._wait_idle()
        await self._end()
        await self._app.aclose()
        self._uvicorn.should_exit = True
        await http

    async def _wait_for_balancers(self) -> None:
        """Let `drain_delay_s` pass, or less after a second `stop`; nobody sends calls to a server that was not ready."""
        if self._registry.models and self._listen.drain_delay_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._forced.wait(), self._listen.drain_delay_s)

    async def _stop_engines(self) -> None:
        """End every engine; one that fails to must not keep the others or the port."""
        models = self._registry.models
        ends = await asyncio.gather(*(model.engine.shutdown(0.0) for model in models), return_exceptions=True)
        for model, end in zip(models, ends, strict=True):
            if isinstance(end, BaseException):
                logger.error("the engine of model %s did not stop cleanly", model.name, exc_info=end)

    async def _wait_idle(self) -> None:
        """Wait for the running requests, at most `drain_s` seconds and only until a second `stop`."""
        idle = asyncio.create_task(self._registry.wait_idle())
        try:
            async with asyncio.timeout(self._listen.drain_s):
                while not idle.done() and not self._uvicorn.force_exit:
                    await asyncio.wait((idle,), timeout=0.1)  # a forced exit is noticed within this time
        except TimeoutError:
            logger.warning("aborting the requests that did not finish within %g s", self._listen.drain_s)
        finally:
            idle.cancel()


def run(
    registry: ModelRegistry,
    config: ServerConfig,
    listen: ListenConfig,
    load: Load | None = None,
    on_listening: OnListening | None = None,
    owner: ModelOwner | None = None,
) -> int:
    """Serve in this thread, which must be the main one, until SIGTERM or SIGINT; the exit code.

    `on_listening(host, port)` is called with the real port as soon as it is open, before `load` begins.
    Raises: OSError if the port cannot be bound.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve_with_signals(HttpServer(registry, config, listen, load, on_listening, owner)))


async def _serve_with_signals(server: HttpServer) -> int:
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, server.stop)
    try:
        return await server.serve()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def bind(host: str, port: int, backlog: int = 2048) -> socket.socket:
    """A listening socket. Raises: OSError naming the address if it cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {host} port {port}: {error.strerror or error}") from error


def _uvicorn_config(app: object, listen: ListenConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # an ASGI callable, in our own message types
        http=protocol_class(listen.stall_timeout_s),
        ws="none",
        loop="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        workers=1,
        proxy_headers=False,
        forwarded_allow_ips="",  # given, so that uvicorn does not look into the environment
        server_header=False,
        backlog=listen.backlog,
        timeout_keep_alive=listen.keep_alive_s,
        timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
    )


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the event loop: uvloop where it exists (not on Windows), else the standard one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
