"""The application over one model in this process, which nobody else can reach.

Does: put it together without a port and without keys. Does not: load the model or call it. Used by the commands that load a
model for themselves.
"""

from __future__ import annotations

from dragoman.config.server_options import ServerSettings
from dragoman.server.app import App, ServerConfig, build_app
from dragoman.server.http.switches import Switches
from dragoman.server.registry import ModelRegistry, ServedModel


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
