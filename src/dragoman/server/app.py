"""The ASGI application: every request enters here.

Does: match the route, answer unknown paths and methods, put the common headers on every answer, catch what slipped through.
Does not: read bodies, generate or manage models. Built by `build_app`, called by uvicorn on the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dragoman.server.deferred import DeferredAnswers
from dragoman.server.dialects.base import Reply
from dragoman.server.exchange import ClientGone, Exchange, Receive, Scope, Send
from dragoman.server.front import front_error, json_reply
from dragoman.server.management import ManagementRoutes
from dragoman.server.openapi import ApiFacts, documentation_routes
from dragoman.server.registry import ModelRegistry
from dragoman.server.responder import Responder
from dragoman.server.routes import Gate, InferenceRoutes, Route, RouteTable
from dragoman.server.tokens_routes import TokenRoutes

logger = logging.getLogger("dragoman.server")

# What LMI's front end sends with every answer: generated text must not be cached on the way.
CACHE_HEADERS: Mapping[str, str] = {
    "pragma": "no-cache",
    "cache-control": "no-cache; no-store, must-revalidate, private",
    "expires": "Thu, 01 Jan 1970 00:00:00 UTC",
}


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What the HTTP side may be told. `api_keys` empty = open; "" = no CORS header."""

    max_request_size_bytes: int = 64 * 1024 * 1024  # LMI's max_request_size default
    api_keys: frozenset[str] = field(default=frozenset(), repr=False)
    cors_allowed_origin: str = ""
    cors_allowed_methods: str = ""
    cors_allowed_headers: str = ""
    api: ApiFacts = field(default_factory=ApiFacts)  # what /openapi.json tells about the default model


class App:
    """The ASGI callable."""

    def __init__(self, table: RouteTable, front_headers: Mapping[str, str], deferred: DeferredAnswers) -> None:
        self._table = table
        self._front_headers = front_headers
        self._deferred = deferred

    async def aclose(self) -> None:
        """End what runs without a client that waits for it."""
        await self._deferred.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request. Other protocols are refused by not being spoken. Raises: ValueError for those."""
        if scope["type"] != "http":
            raise ValueError(f"scope type {scope['type']!r} is not served, only 'http' is")
        exchange = Exchange(scope, receive, send, self._front_headers)
        try:
            await self._dispatch(exchange)
        except ClientGone:
            return
        except Exception:  # request boundary: a defect in a dialect's own error path still gets an answer
            logger.exception("request %s to %s failed", exchange.request_id, exchange.path)
            if exchange.is_started:
                await exchange.cut()
            else:
                await exchange.send_reply(front_error(500, "InternalServerException", "Internal server error"))

    async def _dispatch(self, exchange: Exchange) -> None:
        match = self._table.match(exchange.path)
        if match is None:
            return await exchange.send_reply(_not_found())
        handler = match.route.handler(exchange.method)
        if handler is not None:
            return await handler(exchange, match.path_params)
        if exchange.method == "OPTIONS":
            return await exchange.send_reply(json_reply(200, {}), {"allow": match.route.allow})
        refusal = match.route.refusals.get(exchange.method) or _method_not_allowed(match.route)
        return await exchange.send_reply(refusal)


def build_app(registry: ModelRegistry, config: ServerConfig, extra_routes: Sequence[Route] = ()) -> App:
    """The application over `registry`, which may still be empty and is filled while `/ping` already answers 503."""
    deferred = DeferredAnswers()
    routes = all_routes(registry, config, deferred, extra_routes)
    return App(RouteTable(routes), {**CACHE_HEADERS, **_cors_headers(config)}, deferred)


def all_routes(
    registry: ModelRegistry, config: ServerConfig, deferred: DeferredAnswers, extra_routes: Sequence[Route] = ()
) -> list[Route]:
    """Every route of the application, those that describe the others included."""
    gate = Gate(config.max_request_size_bytes, config.api_keys)
    inference = InferenceRoutes(registry, Responder(), gate, deferred)
    management = ManagementRoutes(registry, gate)
    tokens = TokenRoutes(registry, gate)
    routes = [*inference.routes(), *tokens.routes(), *management.routes(), *extra_routes]
    api = replace(config.api, needs_key=bool(config.api_keys))
    return [*routes, *documentation_routes(routes, api)]


def _cors_headers(config: ServerConfig) -> dict[str, str]:
    named = {
        "access-control-allow-origin": config.cors_allowed_origin,
        "access-control-allow-methods": config.cors_allowed_methods,
        "access-control-allow-headers": config.cors_allowed_headers,
    }
    return {name: value for name, value in named.items() if value}


def _not_found() -> Reply:
    message = "Requested resource is not found, please refer to API document."
    return front_error(404, "ResourceNotFoundException", message)


def _method_not_allowed(route: Route) -> Reply:
    message = "Requested method is not allowed, please refer to API document."
    return front_error(405, "MethodNotAllowedException", message, {"allow": route.allow})
