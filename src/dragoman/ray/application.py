"""Builds the Serve application: a server deployment in front of an engine deployment."""

from __future__ import annotations

import logging
from typing import Any

from ray import serve
from ray.serve import Application as ServeApplication
from ray.serve.config import RequestRouterConfig

from dragoman.config.sources import environment
from dragoman.ray import factory, router
from dragoman.ray.arguments import Application, engine_settings, notes, read_application, server_settings
from dragoman.ray.front import Front
from dragoman.ray.replica import EngineReplica

logger = logging.getLogger("dragoman.ray")


def build(arguments: dict[str, Any]) -> ServeApplication:
    """The application for these arguments (docs/ray.md) and the environment's options. Raises: ConfigError."""
    application = read_application(arguments, environment())
    config = application.config()
    for note in notes(config):
        logger.warning("%s", note)
    routing = RequestRouterConfig(
        request_router_class=f"{router.__name__}:{router.PrefixRouter.__name__}",
        request_router_kwargs={"prefix_tokens": application.scale.prefix_tokens},
    )
    engine = serve.deployment(
        EngineReplica, request_router_config=routing, **engine_settings(application.scale, config)
    )
    if not application.scale.num_servers:
        return engine.bind(application)
    server = serve.deployment(_server(application), **server_settings(application.scale, config))
    return server.bind(engine.bind(application))


def _server(application: Application) -> type:
    """The class of the server deployment; it keeps no reference to the engines, which the factory finds by name."""

    def make_app() -> Front:
        return Front(application, factory.ADDRESS)

    ingress: type = serve.ingress(make_app)()
    return ingress
