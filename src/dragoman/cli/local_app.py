"""A model that a command loads for itself, and the application over it, which nobody else can reach.

Does: load the model and end it, put the application together without a port and without keys. Does not: call it. Used by
the commands, on the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.cli.progress import ProgressDisplay
from dragoman.compose import build_served_model
from dragoman.config.resolve import Config
from dragoman.config.server_options import ServerSettings
from dragoman.server.app import App, ServerConfig, build_app
from dragoman.server.http.switches import Switches
from dragoman.server.registry import ModelRegistry, ServedModel


@asynccontextmanager
async def local_model(config: Config, display: ProgressDisplay) -> AsyncIterator[ServedModel]:
    """The model, loaded for the time of the block. Raises: what loading raises."""
    composed = await build_served_model(config, display)
    display.finish()
    try:
        yield composed.served
    finally:
        await composed.served.engine.shutdown(0.0)  # which also writes what is left for the disk
        composed.close()


def registry_of(served: ServedModel) -> ModelRegistry:
    """The registry that holds this model only, ready for calls."""
    registry = ModelRegistry(served.dialects, profile=served.profile)
    registry.add(served)
    registry.mark_ready()
    return registry


def local_app(served: ServedModel, settings: ServerSettings) -> App:
    """The application with this model, as a server has it, but for keys: there are no strangers here."""
    switches = Switches(settings.strict, settings.timings, settings.keep_alive_seconds)
    return build_app(registry_of(served), ServerConfig(settings.max_request_size, switches=switches))
