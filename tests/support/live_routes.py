"""The routes that a server has, and the document that describes them, without a server."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from dragoman.cli.serve import metrics_routes
from dragoman.server.apis.lmi.deferred import DeferredAnswers
from dragoman.server.app import ServerConfig, all_routes
from dragoman.server.openapi import ApiFacts, openapi_document
from dragoman.server.registry import ModelRegistry
from dragoman.server.routes import Route
from tests.support.line_dialect import line_dialects


def live_routes() -> list[Route]:
    """Every route of a server that `dragoman serve` starts."""
    registry = ModelRegistry(line_dialects())
    return all_routes(registry, ServerConfig(), DeferredAnswers(), metrics_routes(registry))


def live_document(facts: ApiFacts | None = None) -> Any:
    """The OpenAPI document of those routes, as a client decodes it."""
    return json.loads(msgspec.json.encode(openapi_document(live_routes(), facts or ApiFacts())))
