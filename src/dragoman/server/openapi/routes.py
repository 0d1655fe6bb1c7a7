"""`GET /openapi.json` and `GET /docs`.

Does: build the document at the first request and keep its bytes; hand out the page, which needs nothing from elsewhere.
Does not: describe anything itself. Made by the app, answers on the event loop. Open to all: neither tells about models' use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files

import msgspec

from dragoman.server.dialects.base import Reply
from dragoman.server.exchange import Exchange
from dragoman.server.framing import JSON_MEDIA_TYPE
from dragoman.server.openapi.document import openapi_document
from dragoman.server.openapi.facts import ApiFacts
from dragoman.server.openapi.management_operations import HTML_MEDIA_TYPE
from dragoman.server.routes import Handler, PathParams, Route

# The page may run what it brings along and ask this server, nothing else.
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


def documentation_routes(routes: Sequence[Route], facts: ApiFacts) -> list[Route]:
    """The routes that describe `routes` and themselves."""

    @cache
    def document() -> Reply:
        described = openapi_document([*routes, *own], facts)
        return Reply(200, msgspec.json.encode(described), JSON_MEDIA_TYPE)

    @cache
    def page() -> Reply:
        html = files("dragoman.server.openapi").joinpath("docs.html").read_bytes()
        return Reply(200, html, HTML_MEDIA_TYPE, PAGE_HEADERS)

    own = [Route("/openapi.json", {"GET": _handler(document)}), Route("/docs", {"GET": _handler(page)})]
    return own


def _handler(reply: Callable[[], Reply]) -> Handler:
    async def handle(exchange: Exchange, path_params: PathParams) -> None:
        await exchange.send_reply(reply())

    return handle
