"""Loads a model for a command, and builds its private application, without a port. Used on the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.cli.progress import ProgressDisplay
from dragoman.compose import build_served_model
from dragoman.config.resolve import Config
from dragoman.config.server_options import ServerSettings
from dragoman.server.app import App, ServerConfig, build_app
from dragoman.server.http.fields import Switches
from dragoman.server.registry import ModelRegistry, ServedModel


@asynccontextmanager
async def local_model(config: Config, display: ProgressDisplay) -> AsyncIterator[ServedModel]:
    """The model, loaded within the block. Raises: errors of loading."""
    composed = await build_served_model(config, display)
    display.finish()
    try:
        yield composed.served
    finally:
        await composed.served.engine.shutdown(0.0)  # also writes pending prompts to the disk
        composed.close()


def registry_of(served: ServedModel) -> ModelRegistry:
    registry = ModelRegistry(served.dialects, profile=served.profile)
    registry.add(served)
    registry.mark_ready()
    return registry


def local_app(served: ServedModel, settings: ServerSettings) -> App:
    """A server's application with this model, without keys, since no other client can reach it."""
    switches = Switches(settings.strict, settings.timings, settings.keep_alive_seconds)
    return build_app(registry_of(served), ServerConfig(settings.max_request_size, switches=switches))
