"""`GET /openapi.json`, `GET /docs` and `GET /`.

Does: build the document at the first request and keep its bytes; hand out the page, which needs nothing from elsewhere; say
at the root what this server is. Does not: describe anything itself. Made by the app, answers on the event loop. Open to all:
none of them tells about models' use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from dragoman import __version__
from dragoman.server.api import Reply
from dragoman.server.exchange import Exchange
from dragoman.server.framing import JSON_MEDIA_TYPE
from dragoman.server.front import json_reply
from dragoman.server.openapi.document import OPERATIONS, openapi_document
from dragoman.server.openapi.facts import ApiFacts
from dragoman.server.openapi.management_operations import HTML_MEDIA_TYPE
from dragoman.server.routes import Handler, PathParams, Route, joined_routes

Readiness = Callable[[], tuple[int, Mapping[str, Any]]]
"""The status of the health checks, and each model's."""

# The page may run what it brings along and ask this server, nothing else.
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


def documentation_routes(routes: Sequence[Route], facts: ApiFacts, readiness: Readiness) -> list[Route]:
    """The routes that describe `routes` and themselves."""

    @cache
    def document() -> Reply:
        described = openapi_document(joined_routes([*routes, *own]), facts)
        return Reply(200, msgspec.json.encode(described), JSON_MEDIA_TYPE)

    @cache
    def page() -> Reply:
        html = files("dragoman.server.openapi").joinpath("docs.html").read_bytes()
        return Reply(200, html, HTML_MEDIA_TYPE, PAGE_HEADERS)

    async def index(exchange: Exchange, path_params: PathParams) -> None:
        """What people and load balancers see who know only the address: the page, or what is here; as ready as `/ping`."""
        status, statuses = readiness()
        if "text/html" in exchange.headers.get("accept", ""):
            reply = replace(page(), status=status)
        else:
            reply = json_reply(status, index_body(joined_routes([*routes, *own]), statuses))
        await exchange.send_reply(reply, {"vary": "accept"})

    own = [
        Route("/", {"GET": index}),
        Route("/openapi.json", {"GET": _handler(document)}),
        Route("/docs", {"GET": _handler(page)}),
    ]
    return own


def index_body(routes: Sequence[Route], statuses: Mapping[str, Any]) -> dict[str, Any]:
    """What `GET /` tells programs."""
    calls: dict[str, list[str]] = {}
    for route in routes:
        for method in sorted(route.handlers):
            operation = OPERATIONS.get((method, route.path))
            calls.setdefault("Other" if operation is None else operation.tag, []).append(f"{method} {route.path}")
    return {
        "server": "dragoman",
        "version": __version__,
        "models": statuses,
        "docs": "/docs",
        "openapi": "/openapi.json",
        "routes": calls,
    }


def _handler(reply: Callable[[], Reply]) -> Handler:
    async def handle(exchange: Exchange, path_params: PathParams) -> None:
        await exchange.send_reply(reply())

    return handle
