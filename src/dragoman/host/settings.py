"""What the HTTP side is told of a configuration.

Does: translate the options of the whole server, read the key file. Does not: listen. Called by whoever runs the application,
at the start.
"""

from __future__ import annotations

from typing import cast

from dragoman.config.resolve import Config, ConfigError
from dragoman.server.app import ServerConfig
from dragoman.server.observation.request_log import LogForm


def server_config(config: Config) -> ServerConfig:
    """The HTTP settings of `config`, the process's configuration. Raises: ConfigError if the key file has no keys."""
    server = config.server
    return ServerConfig(
        max_request_size_bytes=server.max_request_size,
        api_keys=_api_keys(config),
        cors_allowed_origin=server.cors_allowed_origin,
        cors_allowed_methods=server.cors_allowed_methods,
        cors_allowed_headers=server.cors_allowed_headers,
        log_requests=cast(LogForm, server.log_requests),
        log_prompts=server.log_prompts,
        metrics_compat=server.metrics_compat,
    )


def _api_keys(config: Config) -> frozenset[str]:
    """The key of the environment and those of the key file. Raises: ConfigError if the file has none."""
    keys = {config.server.api_key} if config.server.api_key else set()
    path = config.server.api_key_file
    if path is None:
        return frozenset(keys)
    where = f"api_key_file={path} ({config.origins['api_key_file'].source})"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{where}: must be a readable UTF-8 file: {error}"]) from error
    from_file = {line.strip() for line in lines if line.strip()}
    if not from_file:
        raise ConfigError([f"{where}: must hold at least one key, one per line"])
    return frozenset(keys | from_file)
