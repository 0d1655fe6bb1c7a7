"""Finds who answers a terminal command: a server at a URL, or a model that is loaded into this process.

Does: load with progress, errors on one line each. Does not: ask anything. Called by the terminal commands at their start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from dragoman.cli.progress import ProgressDisplay
from dragoman.cli.terminal.servers.answers import AskFailed, ModelServer
from dragoman.cli.terminal.servers.remote_server import RemoteServer
from dragoman.cli.terminal.servers.target import Target
from dragoman.config.resolve import Config, ConfigError


def open_server(config: Config | None, target: Target, environ: Mapping[str, str], stderr: TextIO) -> ModelServer:
    """Who answers; `close` it at the end. `config` None = the server at the URL. Raises: AskFailed."""
    if config is None:
        return RemoteServer(str(target.url), target.model, environ.get(target.key_variable, ""))
    return _load(config, stderr)


def _load(config: Config, stderr: TextIO) -> ModelServer:
    from dragoman.cli.terminal.servers.local_model import LocalModel  # takes a second to import; a URL need not wait
    from dragoman.errors import EngineDead, ModelError, ServerError

    display = ProgressDisplay(stderr)
    try:
        return LocalModel(config, display)
    except (ConfigError, ModelError, ServerError, EngineDead, OSError) as error:
        display.finish()
        raise AskFailed(str(error)) from None
    finally:
        display.finish()
