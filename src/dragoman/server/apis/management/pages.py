"""`GET /openapi.json`, `GET /docs`, `GET /` and the metrics: what the server says of itself. On the event loop.

Open to all: these pages tell about the use of models only in totals.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec

from dragoman import __version__
from dragoman.metrics import METRICS_MEDIA_TYPE, OPENMETRICS, OPENMETRICS_MEDIA_TYPE, MetricsRegistry
from dragoman.server.api import JSON_MEDIA_TYPE, HttpCall, Reply, json_reply
from dragoman.server.apis.management.health import Statuses, readiness
from dragoman.server.http.fields import names
from dragoman.server.observation.server_metrics import MemoryMetrics
from dragoman.server.openapi import openapi_document
from dragoman.server.operations import AnswerOperation, Server

HTML_MEDIA_TYPE = "text/html; charset=utf-8"
PLAYGROUND = "/playground"  # where browsers are sent that ask for the root, if an API serves it

# The page may run what it brings along and ask this server, nothing else.
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


class Index(msgspec.Struct, frozen=True):
    """The answer of `GET /` for programs. `routes`: calls by kind."""

    server: str
    version: str
    models: Statuses
    docs: str
    openapi: str
    routes: dict[str, list[str]]


def _document(server: Server) -> Reply:
    described = openapi_document(server.apis, server.models.profile, server.needs_key)
    return Reply(200, msgspec.json.encode(described), JSON_MEDIA_TYPE)


def _metrics(server: Server) -> MetricsRegistry:
    models, watch = server.models, server.watch
    others = (models.loads, MemoryMetrics(server.bodies))
    return MetricsRegistry(lambda: models.models, watch.metrics, watch.other_names, others)


async def document(http: HttpCall, server: Server) -> Reply:
    return server.shared(_document)


async def docs(http: HttpCall, server: Server) -> Reply:
    return _page()


async def metrics(http: HttpCall, server: Server) -> Reply:
    as_openmetrics = names(http.accept, OPENMETRICS)
    text = server.shared(_metrics).render(as_openmetrics=as_openmetrics)
    return Reply(200, text, OPENMETRICS_MEDIA_TYPE if as_openmetrics else METRICS_MEDIA_TYPE, {"vary": "accept"})


async def index(http: HttpCall, server: Server) -> Reply:
    status, statuses = readiness(server.models)
    if "text/html" in http.accept:
        reply = await _for_browsers(http, server, status)
    else:
        reply = json_reply(status, index_of(server, statuses))
    vary = ", ".join(name for name in ("accept", reply.headers.get("vary", "")) if name)
    return msgspec.structs.replace(reply, headers={**reply.headers, "vary": vary})


async def _for_browsers(http: HttpCall, server: Server, status: int) -> Reply:
    """A redirect to the playground; if not ready, its page with `status`; without a playground, another page."""
    operations = (one for api in server.apis for one in api.operations if one.path == PLAYGROUND)
    found = next(operations, None)
    if not isinstance(found, AnswerOperation):
        return msgspec.structs.replace(_page(), status=status)
    if status == 200:
        return Reply(307, b"", "", {"location": PLAYGROUND.removeprefix("/")})  # relative: proxies may add a prefix
    always = msgspec.structs.replace(http, headers={**http.headers, "if-none-match": ""})
    page: Reply = await found.answer(always, server)
    return msgspec.structs.replace(page, status=status)


def index_of(server: Server, statuses: Statuses) -> Index:
    """Calls that the models can answer, or all if other models may be loaded."""
    models = server.models.models
    does = {model.pooling is not None for model in models} if models and server.hosting is None else {True, False}
    calls: dict[str, list[str]] = {}
    for api in server.apis:
        for operation in api.operations:
            if any(operation.is_of(is_pooling=is_pooling) for is_pooling in does):
                calls.setdefault(operation.tag, []).append(f"{operation.method} {operation.path}")
    return Index("dragoman", __version__, statuses, "/docs", "/openapi.json", calls)


@cache
def _page() -> Reply:
    html = files("dragoman.server.apis.management").joinpath("docs.html").read_bytes()
    return Reply(200, html, HTML_MEDIA_TYPE, PAGE_HEADERS)
