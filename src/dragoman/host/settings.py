"""Turns a configuration into the settings of the HTTP side. Reads key files, so that mistakes show at the start."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

from dragoman.config.resolve import Config, ConfigError
from dragoman.server.app import ServerConfig
from dragoman.server.batches.store import Store, StoreConfig, StoreError
from dragoman.server.http.fields import Switches
from dragoman.server.observation.request_log import LogForm
from dragoman.server.observation.tracing import TraceExport, TraceProtocol, missing_package
from dragoman.server.security.callers import KeysError, Limits, Scope
from dragoman.server.security.cors import CorsRules
from dragoman.server.security.gate import ANY
from dragoman.server.security.keyring import KeySources
from dragoman.server.security.tls import Tls, TlsError, TlsFiles

PLAYGROUND = "playground"  # its API
_GIB, _DAY_S = 1 << 30, 24 * 3600.0
GENERAL_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"

logger = logging.getLogger("dragoman")


def server_config(config: Config) -> ServerConfig:
    """The HTTP settings of the process's configuration. Raises: ConfigError if a file cannot be used."""
    server = config.server
    made = ServerConfig(
        max_request_size_bytes=server.max_request_size,
        max_body_memory_bytes=server.max_body_memory,
        api_keys=frozenset({server.api_key} if server.api_key else ()),
        key_sources=KeySources(
            key_file=server.api_key_file,
            aws=server.aws_key_pair or "",
            aws_file=server.aws_credentials,
            usual=Limits(server.rate_limit_requests, server.rate_limit_tokens),
        ),
        open_scopes=frozenset(Scope(name) for name in server.open_scopes),
        cors=CorsRules(
            server.cors_allowed_origin,
            server.cors_allowed_methods,
            server.cors_allowed_headers,
            server.cors_allow_credentials,
        ),
        log_requests=cast(LogForm, server.log_requests),
        log_prompts=server.log_prompts,
        metrics_compat=server.metrics_compat,
        switches=Switches(server.strict, server.timings, server.keep_alive_seconds),
        traces=_traces(config),
        left_out=frozenset() if server.playground else frozenset({PLAYGROUND}),
        asks_again=config.engine.engine == "ray" or server.numa != "off",
        store=_store(config),
        path_prefix=server.path_prefix or "",
        # A local call without a key may come from a browser, for a page whose name resolves to this machine.
        allowed_hosts=server.allowed_hosts or (() if server.is_local and not server.has_keys else (ANY,)),
    )
    try:
        made.read_keys()
    except KeysError as error:
        raise ConfigError([_cited(config, ("api_key_file", "aws_credentials"), str(error))]) from error
    return made


def _cited(config: Config, names: Sequence[str], problem: str) -> str:
    """A problem with a file, prefixed by the option among `names` that names this file."""
    files = {name: getattr(config.server, name) for name in names}
    named = next((name for name, path in files.items() if path is not None and problem.startswith(str(path))), None)
    return problem if named is None else f"{config.cite(named)}: {problem}"


def _store(config: Config) -> StoreConfig | None:
    server = config.server
    if server.store_dir is None:
        return None
    if config.engine.engine == "ray" or server.numa != "off":
        raise ConfigError([f"{config.cite('store_dir')}: must not be set when several processes take calls"])
    most = int(server.store_gb * _GIB)
    of_caller = most if server.store_gb_per_key is None else int(server.store_gb_per_key * _GIB)
    made = StoreConfig(server.store_dir, most, of_caller, server.store_max_age_days * _DAY_S)
    try:
        Store(made).close()
    except StoreError as error:
        raise ConfigError([f"{config.cite('store_dir')}: {error}"]) from error
    return made


def tls_of(config: Config) -> Tls | None:
    """The certificate and key for connections, None = plain HTTP. Raises: ConfigError if a file cannot be used."""
    server = config.server
    if server.tls_cert is None:
        lonely = [config.cite(name) for name in ("tls_key", "tls_client_ca") if getattr(server, name) is not None]
        if lonely:
            raise ConfigError([f"{name}: needs tls_cert" for name in lonely])
        return None
    try:
        return Tls(TlsFiles(server.tls_cert, server.tls_key, server.tls_client_ca))
    except TlsError as error:
        raise ConfigError([_cited(config, ("tls_cert", "tls_client_ca"), str(error))]) from error


def _traces(config: Config) -> TraceExport | None:
    """The export of spans, None = none. Raises: ConfigError if its packages are missing and our option asks for it."""
    endpoint, protocol = config.server.otlp_traces_endpoint, cast(TraceProtocol, config.server.otlp_traces_protocol)
    if endpoint is None:
        return None
    if not (missing := missing_package(protocol)):
        return TraceExport(endpoint, protocol)
    problem = f"needs packages that are not installed: {missing}"
    cited = config.cite("otlp_traces_endpoint")
    if config.origins["otlp_traces_endpoint"].name == GENERAL_ENDPOINT:  # the variable may be meant for other programs
        logger.warning("no spans are made: %s: %s", cited, problem)
        return None
    raise ConfigError([f"{cited}: {problem}"])
