"""Runs the HTTP server from bind to exit. Called by the command line (`run`), and by tests (`HttpServer` in a thread).

Life: bind -> /ping 503 -> load -> ready -> signal, or an engine is given up. Then: /ping 503 -> refuse new calls ->
running calls finish -> engines stop, and open calls get an error -> port closes. A second signal ends each of these
waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from dragoman.coroutines import cancel_all
from dragoman.logs import tell_task
from dragoman.server.app import ServerConfig, build_app
from dragoman.server.hosting import NO_OWNER, ModelOwner
from dragoman.server.http.attempts import Attempts
from dragoman.server.http.protocol import DEFAULT_ARRIVAL_TIMEOUT_S, DEFAULT_STALL_TIMEOUT_S, protocol_class
from dragoman.server.process import Watchdog, handle_once
from dragoman.server.registry import ModelRegistry
from dragoman.server.security.reloading import INTERVAL_S, Reloadable, Reloader
from dragoman.server.security.tls import Tls

logger = logging.getLogger("dragoman.server.run")

Load = Callable[[ModelRegistry], Awaitable[None]]
OnListening = Callable[[str, int], None]

CLOSE_TIMEOUT_S = 5  # after the engines have stopped; bounds writes to slow clients
FORCED_END_S = 1.0  # after a second signal: for engines to stop and report errors to open requests
FORCED_EXIT_S = 3.0  # after a second signal the process ends by then, whatever hangs
FROZEN_EXIT_S = 10.0  # after a first signal, if the loop stands still: it would not see a second one

EXIT_LOADING_FAILED = 1
EXIT_ENGINE_FAILED = 70  # sysexits.h: an internal software error, which another start may not meet


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Settings of the listener. `port` 0 = any free one. `drain_s`: for running requests to finish.

    `drain_delay_s`: calls are taken for so long after readiness has turned off, for load balancers. `keep_alive_s`
    exceeds the idle time of common load balancers (60 s), so that they close idle connections. `reload_s`: between
    looks at the files of keys and certificates. `unix_socket` replaces hosts and port.
    """

    hosts: Sequence[str] = ("127.0.0.1",)
    port: int = 8080
    drain_s: float = 30.0
    drain_delay_s: float = 0.0
    keep_alive_s: int = 75
    stall_timeout_s: float = DEFAULT_STALL_TIMEOUT_S
    arrival_timeout_s: float = DEFAULT_ARRIVAL_TIMEOUT_S
    backlog: int = 2048
    tls: Tls | None = None
    reload_s: float = INTERVAL_S
    unix_socket: Path | None = None


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers, which would close the port before the drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """One process's HTTP side. `load` adds the models to the registry once the port is open."""

    def __init__(
        self,
        registry: ModelRegistry,
        config: ServerConfig,
        listen: ListenConfig,
        load: Load | None = None,
        on_listening: OnListening | None = None,
        owner: ModelOwner = NO_OWNER,
    ) -> None:
        self._registry = registry
        self._end = owner.end or self._stop_engines
        self._listen = listen
        self._load = load
        self._on_listening = on_listening
        self._config = config
        self._reloader = Reloader(list(self._reloadables()), listen.reload_s)  # first: what changes from now on is seen
        self._app = build_app(registry, config, owner)
        self._uvicorn = _Uvicorn(_uvicorn_config(Attempts(self._app) if config.asks_again else self._app, listen))
        self._stop: asyncio.Event | None = None
        self._forced = asyncio.Event()  # by a second stop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._num_stops = 0

    async def serve(self) -> int:
        """Serve until `stop`, or until an engine is given up. Returns the exit code. Raises: OSError at binding."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(tell_task)
        unix_socket = self._listen.unix_socket
        if unix_socket is None:
            listeners = bind_all(self._listen.hosts, self._listen.port, self._listen.backlog)
        else:
            listeners = [bind_unix(unix_socket, self._listen.backlog)]
        http = asyncio.create_task(self._uvicorn.serve(sockets=listeners))
        watching = asyncio.create_task(self._reloader.run())
        try:
            await self._until_listening(http)
            if self._on_listening is not None:
                host, port = ("", 0) if unix_socket is not None else listeners[0].getsockname()[:2]
                self._on_listening(host, port)
            self._app.start()
            return await self._run_models(http)
        finally:
            await self._shut_down(http)
            watching.cancel()
            if unix_socket is not None:
                unix_socket.unlink(missing_ok=True)

    @property
    def can_reload(self) -> bool:
        return bool(self._reloader)

    def reload(self) -> None:
        """Read the files of keys and certificates again. Any thread, or a signal handler."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._reloader.wake)

    def _reloadables(self) -> Iterator[Reloadable]:
        yield Reloadable("keys", self._config.key_sources.files, self._read_keys)
        if self._listen.tls is not None:
            yield Reloadable("certificates", self._listen.tls.files, self._listen.tls.reload)

    def _read_keys(self) -> None:
        self._app.gate.keyring = self._config.read_keys()

    def stop(self) -> None:
        """Begin the drain; a second call ends it at once. Any thread, or a signal handler."""
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
        """Return once uvicorn accepts; it has no event for that."""
        while not self._uvicorn.started:
            if http.done():
                http.result()
                raise RuntimeError("the HTTP server ended before it started")
            await asyncio.sleep(0.005)

    async def _run_models(self, http: asyncio.Task[None]) -> int:
        assert self._stop is not None
        stopped = asyncio.create_task(self._stop.wait())
        loading = asyncio.create_task(self._load_models())
        given_up = asyncio.create_task(self._registry.wait_given_up())
        try:
            await asyncio.wait((loading, stopped, http, given_up), return_when=asyncio.FIRST_COMPLETED)
            if loading.done() and not loading.result():
                return EXIT_LOADING_FAILED
            await asyncio.wait((stopped, http, given_up), return_when=asyncio.FIRST_COMPLETED)
            return EXIT_ENGINE_FAILED if given_up.done() and not stopped.done() else 0
        finally:
            await cancel_all((stopped, loading, given_up))

    async def _load_models(self) -> bool:
        """True once the models are served; logs a failure."""
        try:
            if self._load is not None:
                await self._load(self._registry)
            self._registry.mark_ready()
        except Exception as error:  # start-up boundary: any error of a model's loader ends the start, logged once
            logger.exception("loading failed")
            self._registry.mark_failed(f"{type(error).__name__}: {error}")
            return False
        return True

    async def _shut_down(self, http: asyncio.Task[None]) -> None:
        """Turn readiness off, let requests finish, stop the engines (which fails the rest), close the port."""
        self._registry.announce_drain()
        await self._wait_for_balancers()
        await self._app.stop_background()
        self._registry.drain()
        await self._wait_idle()
        await self._briefly_if_forced(self._end())
        await self._briefly_if_forced(self._app.aclose())
        self._uvicorn.should_exit = True
        await http

    async def _wait_for_balancers(self) -> None:
        """Let `drain_delay_s` pass, or less after a second `stop`; a server that was not ready gets no calls."""
        if self._listen.drain_delay_s and any(model.engine.health().is_alive for model in self._registry.models):
            logger.info(
                "stopping: calls are taken for %g s more, until load balancers know", self._listen.drain_delay_s
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._forced.wait(), self._listen.drain_delay_s)

    async def _briefly_if_forced(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for a part of the end; after a second `stop` for at most FORCED_END_S."""
        task, forced = asyncio.create_task(work), asyncio.create_task(self._forced.wait())
        await asyncio.wait((task, forced), return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        _, unfinished = await asyncio.wait((task,), timeout=FORCED_END_S)
        if unfinished:
            logger.warning("ending at once; what runs is cut off")
            task.cancel()
        else:
            task.result()

    async def _stop_engines(self) -> None:
        """End every engine, also if another one fails to end."""
        models = self._registry.models
        ends = await asyncio.gather(*(model.engine.shutdown(0.0) for model in models), return_exceptions=True)
        for model, end in zip(models, ends, strict=True):
            if isinstance(end, BaseException):
                logger.error("the engine of model %s did not stop cleanly", model.name, exc_info=end)

    async def _wait_idle(self) -> None:
        """Wait for the running requests, for `drain_s` at most, until a second `stop`."""
        if (count := self._registry.num_in_flight) and not self._forced.is_set():
            what = "a request" if count == 1 else f"{count} requests"
            message = "stopping: waiting for %s, at most %g s; Ctrl-C or SIGTERM once more ends at once"
            logger.info(message, what, self._listen.drain_s)
        idle, forced = asyncio.create_task(self._registry.wait_idle()), asyncio.create_task(self._forced.wait())
        done, _ = await asyncio.wait((idle, forced), timeout=self._listen.drain_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            logger.warning("aborting the requests that did not finish within %g s", self._listen.drain_s)
        idle.cancel()
        forced.cancel()


def run(
    registry: ModelRegistry,
    config: ServerConfig,
    listen: ListenConfig,
    load: Load | None = None,
    on_listening: OnListening | None = None,
    owner: ModelOwner = NO_OWNER,
) -> int:
    """Serve in the main thread until SIGTERM or SIGINT. Returns the exit code. Raises: OSError at binding.

    `on_listening(host, port)` is called with the real port once it is open, before `load`.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve_with_signals(HttpServer(registry, config, listen, load, on_listening, owner)))


async def _serve_with_signals(server: HttpServer) -> int:
    """The exit code. A second signal of one kind always ends the process, at once if the loop has not seen the first."""
    loop = asyncio.get_running_loop()
    watchdog = Watchdog(FROZEN_EXIT_S)
    num_signals = 0

    def listen(number: signal.Signals) -> None:
        loop.add_signal_handler(number, stop, number)
        handle_once(number)

    def stop(number: signal.Signals) -> None:
        nonlocal num_signals
        num_signals += 1
        server.stop()
        if num_signals == 1:
            listen(number)
            watchdog.watch()
        elif num_signals == 2:
            _exit_later()

    listen(signal.SIGTERM)
    listen(signal.SIGINT)
    if server.can_reload:
        loop.add_signal_handler(signal.SIGHUP, server.reload)
    try:
        return await server.serve()
    finally:
        watchdog.stop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


def _exit_later() -> None:
    """End the process in FORCED_EXIT_S, even if a step or thread hangs."""
    timer = threading.Timer(FORCED_EXIT_S, os._exit, (1,))
    timer.daemon = True
    timer.start()


def bind_all(hosts: Sequence[str], port: int, backlog: int = 2048) -> list[socket.socket]:
    """A listening socket at each address, with the same port. Raises: OSError naming the address."""
    bound: list[socket.socket] = []
    try:
        for host in hosts:
            bound.append(bind(host, bound[0].getsockname()[1] if bound else port, backlog))
    except OSError:
        for listener in bound:
            listener.close()
        raise
    return bound


def bind(host: str, port: int, backlog: int = 2048) -> socket.socket:
    """A listening socket. Raises: OSError naming the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while ")[0]  # Python repeats the address
        raise OSError(error.errno, f"cannot listen on {host} port {port}: {reason}") from error


def bind_unix(path: Path, backlog: int = 2048) -> socket.socket:
    """A listening socket at that path; replaces an abandoned one. Raises: OSError naming the path."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            _refuse_living(path)
            path.unlink()
        listener.bind(str(path))
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {path}: {error.strerror or error}") from error
    return listener


def _refuse_living(path: Path) -> None:
    """Raises: OSError if a process listens on that socket, or if that cannot be found out."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        try:
            other.connect(str(path))
        except ConnectionRefusedError:
            return
    raise OSError(errno.EADDRINUSE, "another server listens on it")


def _uvicorn_config(app: object, listen: ListenConfig) -> uvicorn.Config:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]  # an ASGI callable, in our own message types
        http=protocol_class(listen.stall_timeout_s, listen.arrival_timeout_s),
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
    config.load()
    if listen.tls is not None:
        config.ssl = listen.tls.context  # uvicorn's own would never change
    return config


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's event loop where it exists (not on Windows), else the standard one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
