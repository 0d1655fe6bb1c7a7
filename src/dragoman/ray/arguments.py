"""The parts of an application as data: options of the server, and the number of replicas and their resources.

Called where the application is built, and again by each replica, which reads the model's own file where it runs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dragoman.cli.arguments import read_arguments
from dragoman.config.hub_models import with_models
from dragoman.config.names import find_options
from dragoman.config.resolve import Config, ConfigError, demo_model_dir
from dragoman.config.several import resolve_all
from dragoman.config.sources import Given, environment, read_environment
from dragoman.engine.affinity import DEFAULT_PREFIX_TOKENS
from dragoman.host.loading import has_model
from dragoman.types import BLOCK_TOKENS

logger = logging.getLogger("dragoman")

ENGINE, SERVER = "Engine", "Server"
"""Names of the deployments, by which Serve's own files can set more of their options."""

SHUTDOWN_SPARE_S = 5.0  # after the drain, for the engine's end

Number = int | float


@dataclass(frozen=True, slots=True)
class Scale:
    """The number of replicas, and the resources of each; `docs/ray.md` explains each field.

    With `max_replicas` the number follows the load, from `min_replicas` on. `num_servers` 0: servers run elsewhere
    (`dragoman serve --engine ray`). None = by the model's options, see `engine_settings`.
    """

    num_replicas: int = 1
    min_replicas: int = 1
    max_replicas: int | None = None
    target_ongoing_requests: float | None = None
    max_ongoing_requests: int | None = None
    num_cpus: float | None = None
    num_gpus: float = 0.0
    num_servers: int = 1
    server_num_cpus: float = 0.1
    prefix_tokens: int = DEFAULT_PREFIX_TOKENS


_LEAST: Mapping[str, Number] = {
    "num_replicas": 1,
    "min_replicas": 0,
    "max_replicas": 1,
    "target_ongoing_requests": 0.1,
    "max_ongoing_requests": 1,
    "num_cpus": 0,
    "num_gpus": 0,
    "num_servers": 0,
    "server_num_cpus": 0,
    "prefix_tokens": BLOCK_TOKENS,
}
_WHOLE = frozenset(
    {"num_replicas", "min_replicas", "max_replicas", "max_ongoing_requests", "num_servers", "prefix_tokens"}
)
_OF_AUTOSCALING = ("min_replicas", "target_ongoing_requests")
_WITHOUT_EFFECT: Mapping[str, tuple[str, ...]] = {
    "whose proxies listen (see http_options)": ("host", "port", "unix_socket"),
    "whose proxies take the connections: TLS is for them or for a load balancer": (
        "tls_cert",
        "tls_key",
        "tls_client_ca",
    ),
    "which sends no more calls to what it takes away": ("drain_delay",),
    "which replaces a replica whose engine is dead": (
        "on_engine_failure",
        "max_engine_restarts",
        "engine_restart_window",
    ),
}


@dataclass(frozen=True, slots=True)
class Application:
    """`variables`: options in the builder's environment; they precede a replica's environment."""

    givens: tuple[Given, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    scale: Scale = field(default_factory=Scale)
    num_threads: int | None = None

    def config(self) -> Config:
        """The model's configuration, read on this machine. Raises: ConfigError with every problem."""
        environ, demo_dir = {**environment(), **self.variables}, demo_model_dir()
        resolved = with_models(
            lambda find: resolve_all(self.givens, environ, demo_dir, find=find),
            demo_dir,
            environ,
            _quiet,
            logger.warning,
        )
        config = resolved.process
        if resolved.store is not None or len(resolved.models) != 1:
            names = [
                name
                for name in ("model_store", "models_dir", "load_models")
                if config.origins[name].source != "default"
            ]
            where = ", ".join(config.cite(name) for name in names) or "the default model store"
            raise ConfigError([f"{where}: an application on Ray Serve serves one model; run one application per model"])
        if config.server.allow_pull:
            raise ConfigError([f"{config.cite('allow_pull')}: only `dragoman serve` downloads models for its clients"])
        if not has_model(config):
            raise ConfigError([f"{config.model_dir}: has no weights; only `dragoman serve` can serve a handler alone"])
        if self.num_threads is not None and config.origins["threads"].source == "default":
            return replace(config, model=replace(config.model, threads=self.num_threads))
        return config


def _quiet(stage: str, fraction: float) -> None: ...


def read_application(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> Application:
    """The application for these arguments and variables. Raises: ConfigError, one line for each problem.

    `arguments`: `Scale`'s fields, `model`, and options of the server in snake_case; values may be texts.
    """
    scale, problems = _read_scale(arguments)
    words: list[str] = []
    for name, value in arguments.items():
        if name in _LEAST:
            continue
        if isinstance(value, Mapping) or value is None:
            problems.append(f"{name}={value}: must be a text, a number, true, false, or a list of them")
        elif name == "model":
            words.insert(0, str(value))
        else:
            words.append(f"--{name.replace('_', '-')}={_text(value)}")
    read = read_arguments(words)
    problems += read.problems
    if problems:
        raise ConfigError(problems)
    num_threads = None if scale.num_cpus is None else max(1, math.ceil(scale.num_cpus))
    return Application(read.givens, _of_options(environ), scale, num_threads)


def engine_settings(scale: Scale, config: Config) -> dict[str, Any]:
    """Serve's settings for the deployment whose replicas run the model.

    A replica takes twice as many requests as it runs: the second half waits in its engine, which knows best what to
    admit next. Further requests wait where they can still go to another replica.
    """
    num_running = config.engine.max_num_seqs
    settings: dict[str, Any] = {
        "name": ENGINE,
        "max_ongoing_requests": scale.max_ongoing_requests or 2 * num_running,
        "ray_actor_options": {
            "num_cpus": 1.0 if scale.num_cpus is None else scale.num_cpus,
            "num_gpus": scale.num_gpus,
        },
        **_shutdown(config),
    }
    if scale.max_replicas is None:
        settings["num_replicas"] = scale.num_replicas
    else:
        settings["autoscaling_config"] = {
            "min_replicas": scale.min_replicas,
            "max_replicas": scale.max_replicas,
            "target_ongoing_requests": scale.target_ongoing_requests or float(num_running),
        }
    return settings


def server_settings(scale: Scale, config: Config) -> dict[str, Any]:
    return {
        "name": SERVER,
        "num_replicas": scale.num_servers,
        # Above the server's own limit, so that the server, not Serve, answers excess requests.
        "max_ongoing_requests": 2 * (config.engine.max_num_seqs + config.server.job_queue_size),
        "ray_actor_options": {"num_cpus": scale.server_num_cpus},
        **_shutdown(config),
    }


def notes(config: Config) -> list[str]:
    """One line for each option without effect on Ray Serve."""
    notices = [
        f"{config.cite(name)}: no effect on Ray Serve, {why}"
        for why, names in _WITHOUT_EFFECT.items()
        for name in names
        if config.origins[name].source != "default"
    ]
    return [*config.notices, *notices]


def _shutdown(config: Config) -> dict[str, Any]:
    drain_s = config.server.drain_timeout
    return {"graceful_shutdown_timeout_s": drain_s + SHUTDOWN_SPARE_S, "graceful_shutdown_wait_loop_s": 0.5}


def _read_scale(arguments: Mapping[str, Any]) -> tuple[Scale, list[str]]:
    problems: list[str] = []
    values: dict[str, Number] = {}
    for name in arguments.keys() & _LEAST.keys():
        is_whole = name in _WHOLE
        try:
            number: Number = int(str(arguments[name])) if is_whole else float(str(arguments[name]))
        except ValueError:
            number = math.nan
        if math.isfinite(number) and number >= _LEAST[name]:
            values[name] = number
        else:
            kind = "a whole number" if is_whole else "a number"
            problems.append(f"{name}={arguments[name]}: must be {kind} of at least {_LEAST[name]}")
    if "max_replicas" not in arguments:
        problems += [f"{name}={arguments[name]}: needs max_replicas" for name in _OF_AUTOSCALING if name in arguments]
    elif "num_replicas" in arguments:
        problems.append(f"num_replicas={arguments['num_replicas']}: contradicts max_replicas; give one of them")
    scale = Scale(**values)  # type: ignore[arg-type]  # the whole numbers are int
    if scale.max_replicas is not None and scale.min_replicas > scale.max_replicas:
        problems.append(f"min_replicas={scale.min_replicas}: must be at most max_replicas ({scale.max_replicas})")
    return scale, sorted(problems)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(_text, value)) if isinstance(value, list | tuple) else str(value)


def _of_options(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that name options, known or mistyped; no others leave the building machine."""
    return {
        given.name: environ[given.name]
        for given in read_environment(environ)
        if given.key != given.name or find_options(given)
    }
