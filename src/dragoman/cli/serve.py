"""`dragoman serve`: from a resolved configuration to a running server, and back to the shell.

Does: log set-up, the server's own settings, the order of loading, the banner.
Does not: build the model's parts (`compose` does) or run the loop (`server.run` does). Called by `main`, on the main thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TextIO

from dragoman.cli.banner import BannerFacts, banner
from dragoman.cli.progress import ProgressDisplay
from dragoman.compose import ComposedModel, build_served_model, model_profile
from dragoman.config.resolve import Config, ConfigError
from dragoman.engine.factory import Progress
from dragoman.loading import ModelLoad
from dragoman.memory import split_memory
from dragoman.models import ModelError
from dragoman.server.apis import set_up_all
from dragoman.server.app import ServerConfig
from dragoman.server.registry import ModelRegistry
from dragoman.server.run import ListenConfig, run

EXPECTED = (ConfigError, ModelError)
"""Failures that their message explains: a traceback would only hide it."""

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class OperatorFormatter(logging.Formatter):
    """Log lines with time and level; failures that the operator can mend come without a traceback."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatException(self, ei: _ExcInfo) -> str:  # the name is logging's
        """The traceback, or only the message of an expected failure."""
        return str(ei[1]) if isinstance(ei[1], EXPECTED) else super().formatException(ei)


@dataclass(slots=True)
class _Startup:
    """What `load` needs and what is known only once the port is open."""

    configs: Sequence[Config]
    stdout: TextIO
    display: ProgressDisplay
    loading: ModelLoad | None  # of the only model, if it has begun
    address: tuple[str, int] = field(default=("", 0))

    def listening(self, host: str, port: int) -> None:
        self.address = (host, port)

    async def load(self, registry: ModelRegistry) -> None:
        """Build the models one after the other, add them to the registry, say so."""
        composed: list[ComposedModel] = []
        try:
            for config, memory_bytes in zip(self.configs, split_memory(self.configs), strict=True):
                composed.append(await build_served_model(config, self._progress(config), memory_bytes, self.loading))
                registry.add(composed[-1].served)
        finally:
            self.display.finish()
        registry.mark_ready()  # before the banner: whoever reads it may call at once
        self.stdout.write(banner(self._facts(composed)))
        self.stdout.flush()

    def _progress(self, config: Config) -> Progress:
        """The display; with several models each stage names its model."""
        if len(self.configs) == 1:
            return self.display
        return lambda stage, fraction: self.display(f"{config.name}: {stage}", fraction)

    def _facts(self, composed: Sequence[ComposedModel]) -> BannerFacts:
        first, server = self.configs[0], self.configs[0].server
        return BannerFacts(
            name=first.name,
            model_dir=str(first.model_dir),
            host=server.host,
            port=self.address[1],
            details=composed[0].facts,
            has_chat_template=composed[0].has_chat_template,
            can_generate=composed[0].can_generate,
            needs_key=bool(server.api_key or server.api_key_file),
            chat_format=first.clients.chat_format,
            others=tuple(
                f"{config.name}: {config.model_dir} ({', '.join(model.facts)})"
                for config, model in zip(self.configs[1:], composed[1:], strict=True)
            ),
        )


def serve(
    configs: Sequence[Config],
    stdout: TextIO,
    stderr: TextIO,
    display: ProgressDisplay,
    loading: ModelLoad | None = None,
) -> int:
    """Serve these models, the first of which is the default, until SIGTERM or Ctrl-C; the exit code.

    `loading` is that of the only model, which may have begun; several are loaded one after the other.
    """
    first = configs[0]
    _start_logging(first.server.log_level, stderr)
    startup = _Startup(configs, stdout, display, loading)
    try:
        profile = model_profile(first)
        registry = ModelRegistry(set_up_all(profile), [config.name for config in configs], profile)
        return run(registry, _server_config(first), _listen_config(first), startup.load, startup.listening)
    except (ConfigError, OSError) as error:
        stderr.write(f"dragoman: {error}\n")
        return 1


def _start_logging(level: str, stderr: TextIO) -> None:
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(OperatorFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    if level == "info":  # uvicorn's own start and stop messages repeat ours
        logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _server_config(config: Config) -> ServerConfig:
    server = config.server
    return ServerConfig(
        max_request_size_bytes=server.max_request_size,
        api_keys=_api_keys(config),
        cors_allowed_origin=server.cors_allowed_origin,
        cors_allowed_methods=server.cors_allowed_methods,
        cors_allowed_headers=server.cors_allowed_headers,
    )


def _listen_config(config: Config) -> ListenConfig:
    return ListenConfig(host=config.server.host, port=config.server.port, drain_s=config.server.drain_timeout)


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
