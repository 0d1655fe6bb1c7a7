"""`dragoman serve`: sets up the log, orders the loads, prints the banner. Called by `main`, on the main thread.

`compose` builds the models' parts, `server.run` runs the loop.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, TextIO, cast

from dragoman.cli.banner import Address, BannerFacts, banner, empty_banner
from dragoman.cli.progress import ProgressDisplay
from dragoman.compose import ComposedModel, Composer, model_profile
from dragoman.config.resolve import Config, ConfigError
from dragoman.config.run_time import ModelStore
from dragoman.config.sources import environment
from dragoman.cores import applied
from dragoman.engine.factory import Progress
from dragoman.host.host import ModelHost
from dragoman.host.ledger import MemoryLedger
from dragoman.host.loading import ModelLoad
from dragoman.host.machine import available_memory_bytes
from dragoman.host.pulls import ModelPulls
from dragoman.host.recovery import FailureAction, FailurePolicy
from dragoman.host.reports import log_progress
from dragoman.host.settings import server_config, tls_of
from dragoman.hub.environment import hub_environment
from dragoman.logs import BackgroundWriter, OperatorFormatter, start_logging, write_to
from dragoman.models import ModelError
from dragoman.models.memory import bound_arenas, return_freed_memory
from dragoman.server.apis import set_up_all
from dragoman.server.hosting import ModelOwner
from dragoman.server.observation.request_log import LOGGER_NAME, LogForm
from dragoman.server.process import raise_descriptor_limit
from dragoman.server.registry import ModelRegistry, ServerState
from dragoman.server.run import ListenConfig, run

logger = logging.getLogger("dragoman.server")

EXPECTED = (ConfigError, ModelError)
"""Failures that their message explains: a traceback would only hide it."""


@dataclass(frozen=True, slots=True)
class Serving:
    """The models to serve at the start, and possible later ones.

    `process`: the configuration with the process-wide options, the first model's if there is one. `store`: the models
    for later loads. `memory_bytes`: free at the start. `begun`: the only model's load, if it has begun.
    """

    process: Config
    configs: Sequence[Config]
    store: ModelStore
    memory_bytes: int
    begun: ModelLoad | None = None


@dataclass(slots=True)
class _Startup:
    serving: Serving
    host: ModelHost[ComposedModel]
    stdout: TextIO
    display: ProgressDisplay
    port: int = 0

    def listening(self, host: str, port: int) -> None:
        self.port = port

    async def load(self, registry: ModelRegistry) -> None:
        try:
            composed = await self.host.start(self.serving.configs)
        finally:
            gc.freeze()  # objects of a start stay: looking through them takes 40 ms each time
            gc.enable()  # the command has switched it off
            self.display.finish()
        registry.mark_ready()  # before the banner, as its readers may call at once
        store = str(self.serving.store.root)
        text = banner(self._facts(composed)) if composed else empty_banner(store, self._address())
        problem = write_to(self.stdout, text)
        if problem:  # a full disk, or a closed pipe
            logger.warning("what is served cannot be told on the standard output: %s", problem)
        # The loading threads' heaps keep some 30 MB of freed memory.
        await asyncio.to_thread(return_freed_memory)

    def _address(self) -> Address:
        server = self.serving.process.server
        unix_socket = "" if server.unix_socket is None else str(server.unix_socket)
        return Address(server.hosts[0], self.port, server.tls_cert is not None, unix_socket, server.path_prefix or "")

    def _facts(self, composed: Sequence[ComposedModel]) -> BannerFacts:
        first, server = self.serving.process, self.serving.process.server
        pooling = composed[0].served.pooling
        return BannerFacts(
            name=first.name,
            model_dir=str(first.model_dir),
            address=self._address(),
            details=composed[0].facts,
            has_chat_template=composed[0].has_chat_template,
            can_generate=composed[0].can_generate,
            is_mixed=len({model.served.pooling is None for model in composed}) > 1,
            pooling=None if pooling is None else pooling.facts.kind,
            needs_key=server.has_keys and "inference" not in server.open_scopes,
            has_playground=server.playground,
            chat_format=first.clients.chat_format,
            has_lmi_signs=first.has_lmi_signs,
            others=tuple(config.name for config in self.serving.configs[1:]),
        )


def serve(serving: Serving, stdout: TextIO, stderr: TextIO, display: ProgressDisplay) -> int:
    """Serve these models until SIGTERM or Ctrl-C; the first is the default. Returns the exit code."""
    first, names = serving.process, [config.name for config in serving.configs]
    log = BackgroundWriter(stderr)
    form = _request_log_form(first, stderr)
    _start_logging(first, log, form)
    if placed := str(applied()):
        logger.info("%s", placed)
    raise_descriptor_limit()
    bound_arenas()  # before there are many threads, as each may get a heap at the first load
    try:
        profile = model_profile(first)
        # Clients can change models only if the operator allows it.
        can_be_empty = serving.store.root is not None or first.server.idle_unload > 0
        registry = ModelRegistry(set_up_all(profile), names, profile, can_be_empty=can_be_empty)
        host = _host(serving, registry, display)
        startup = _Startup(serving, host, stdout, display)
        config, listen = replace(server_config(first), log_requests=form), _listen_config(first)
        warn_if_open(first)
        hosting = host if can_be_empty else None
        pulls = ModelPulls(hub_environment(serving.store.variables)) if first.server.allow_pull else None
        owner = ModelOwner(hosting, host.close, pulls)
        code = run(registry, config, listen, startup.load, startup.listening, owner=owner)
        if pulls is not None and pulls.is_busy:
            logger.info("downloads are left where they are; the next one of these models goes on from there")
            _end_now(code, log)
        ray = sys.modules.get("ray")  # imported only for a cluster
        if ray is not None and ray.is_initialized():
            _end_now(code, log)
        return code
    except OSError as error:
        log.write(f"dragoman: {_reason(error)}\n")
    except ConfigError as error:
        log.write(f"dragoman: {error}\n")
    finally:
        log.drain()
    return 1


def _end_now(code: int, log: BackgroundWriter) -> NoReturn:
    """End the process without waiting for threads of libraries.

    Downloads would delay it until their files are complete; received parts are kept anyway. Ray's threads sometimes abort
    the process while the interpreter ends.
    """
    log.drain()
    os._exit(code)


def _reason(error: OSError) -> str:
    reason = error.strerror if error.strerror and error.filename is None else str(error)
    if error.errno == errno.EADDRINUSE:
        reason += "; --port takes another one (0: any that is free), `dragoman doctor` tells who has it"
    return reason


def _host(serving: Serving, registry: ModelRegistry, display: ProgressDisplay) -> ModelHost[ComposedModel]:
    """The owner of the models. Progress of loads goes to the display at the start, later to the log."""
    ledger = MemoryLedger(serving.memory_bytes, available_memory_bytes)
    drain_s = serving.process.server.drain_timeout

    def progress(name: str) -> Progress:
        if registry.state is not ServerState.LOADING:
            return log_progress(name)
        if len(serving.configs) == 1:
            return display if serving.begun is None else lambda stage, fraction: None  # its load began with the display
        return lambda stage, fraction: display(f"{name}: {stage}", fraction)

    idle_s = serving.process.server.idle_unload or math.inf
    policy = failure_policy(serving.process)
    return ModelHost(registry, Composer(serving.begun), serving.store, ledger, drain_s, progress, policy, idle_s)


def failure_policy(config: Config) -> FailurePolicy:
    server = config.server
    action = cast(FailureAction, server.on_engine_failure)
    return FailurePolicy(action, server.max_engine_restarts, server.engine_restart_window)


def _request_log_form(config: Config, stderr: TextIO) -> LogForm:
    """The configured form of the request log, but short on a terminal if prompts are not logged."""
    server = config.server
    if server.log_requests != "text" or server.log_prompts or not stderr.isatty():
        return cast(LogForm, server.log_requests)
    return "short" if environment().get("NO_COLOR") else "coloured"


def _start_logging(config: Config, log: BackgroundWriter, form: LogForm) -> None:
    server = config.server
    start_logging(log, OperatorFormatter(EXPECTED, shows_values=server.log_prompts), server.log_level)
    is_bare = form in ("json", "short", "coloured")  # lines have no prefix
    requests = logging.getLogger(LOGGER_NAME)
    requests.handlers[:] = [logging.StreamHandler(log)] if is_bare else []
    requests.propagate = not is_bare
    if server.log_level == "info":  # uvicorn's start and stop messages repeat ours
        logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _listen_config(config: Config) -> ListenConfig:
    return ListenConfig(
        hosts=config.server.hosts,
        port=config.server.port,
        unix_socket=config.server.unix_socket,
        drain_s=config.server.drain_timeout,
        drain_delay_s=config.server.drain_delay,
        tls=tls_of(config),
    )


def warn_if_open(config: Config) -> None:
    server = config.server
    if server.is_local:
        return
    if not server.has_keys and server.tls_client_ca is None:
        logger.warning(
            "anybody who reaches %s may use this server and read what runs on it: no keys are set (--api-key-file)",
            server.host,
        )
    elif server.tls_cert is None:
        logger.warning(
            "keys and texts travel readable to %s: set --tls-cert, or have a proxy in front speak TLS", server.host
        )
