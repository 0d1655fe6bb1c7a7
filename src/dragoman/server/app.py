"""The ASGI application: every request enters here.

Does: match the route, tell what failed before or instead of a dialect in the words of the API that owns the path, put the
common headers on every answer. Does not: read bodies, generate or manage models.
Built by `build_app`, called by uvicorn on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dragoman.errors import TooLarge, UnknownPath, WrongMethod
from dragoman.server.apis import all_apis
from dragoman.server.endpoints import Endpoints, Gate
from dragoman.server.hosting import ModelHosting
from dragoman.server.http.exchange import ClientGone, Exchange, HeaderRules, Receive, Scope, Send
from dragoman.server.http.replies import json_reply
from dragoman.server.http.routes import RouteTable, joined_routes
from dragoman.server.observation.request_log import LogForm, RequestLog
from dragoman.server.observation.watch import Watch
from dragoman.server.registry import ModelRegistry
from dragoman.server.responder import as_server_error, error_reply

MAX_SHOWN_LENGTH = 100

# Generated text must not be cached on the way.
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
    log_requests: LogForm = "off"
    log_prompts: bool = False
    metrics_compat: tuple[str, ...] = ()


class App:
    """The ASGI callable."""

    def __init__(self, endpoints: Endpoints, rules: HeaderRules) -> None:
        self._endpoints = endpoints
        self._table = RouteTable(joined_routes(list(endpoints.routes())))
        self._rules = rules

    async def aclose(self) -> None:
        """End what runs without a client that waits for it."""
        await self._endpoints.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request. Other protocols are refused by not being spoken. Raises: ValueError for those."""
        if scope["type"] != "http":
            raise ValueError(f"scope type {scope['type']!r} is not served, only 'http' is")
        exchange = Exchange(scope, receive, send, self._rules)
        try:
            await self._dispatch(exchange)
        except ClientGone:
            return
        except Exception as error:  # request boundary: whatever a handler raises is answered, or ends the connection
            http = exchange.http_call()
            failure = as_server_error(error, http)
            if exchange.is_started:
                await exchange.cut()
            else:
                reply = error_reply(self._endpoints.owner(exchange.path), failure, http)
                await (exchange.refuse_upload if isinstance(failure, TooLarge) else exchange.send_reply)(reply)
                if exchange.api:
                    self._endpoints.watch.refused(exchange.api, exchange, failure)

    async def _dispatch(self, exchange: Exchange) -> None:
        """Answer with the handler of path and method. Raises: UnknownPath, WrongMethod, and what the handler raises."""
        match = self._table.match(exchange.path)
        if match is None:
            raise UnknownPath(
                f"Unknown path {shown(exchange.path)}: the nearest one is {self._table.nearest(exchange.path)}, "
                "GET /docs describes all"
            )
        handler = match.route.handler(exchange.method)
        if handler is not None:
            return await handler(exchange, match.path_params)
        allow = match.route.allow
        if exchange.method == "OPTIONS":
            return await exchange.send_reply(json_reply(200, {}, {"allow": allow}))
        why = match.route.absences.get(exchange.method) or f"{allow} are"
        raise WrongMethod(f"{exchange.method} is not allowed for {shown(exchange.path)}: {why}", allow=allow)


def build_app(registry: ModelRegistry, config: ServerConfig, hosting: ModelHosting | None = None) -> App:
    """The application over `registry`, which may still be empty and is filled while `/ping` already answers 503.

    `hosting` None = models do not come and go.
    """
    gate = Gate(config.max_request_size_bytes, config.api_keys)
    apis = all_apis()
    rules = HeaderRules(
        sent={**CACHE_HEADERS, **_cors_headers(config)},
        naming=("x-request-id", *(name for api in apis for name in api.request_id_headers)),
        folded=tuple(name for api in apis for name in api.folded_headers),
    )
    watch = Watch(RequestLog(config.log_requests, shows_prompts=config.log_prompts), config.metrics_compat)
    return App(Endpoints(apis, registry, gate, hosting, watch), rules)


def _cors_headers(config: ServerConfig) -> dict[str, str]:
    named = {
        "access-control-allow-origin": config.cors_allowed_origin,
        "access-control-allow-methods": config.cors_allowed_methods,
        "access-control-allow-headers": config.cors_allowed_headers,
    }
    return {name: value for name, value in named.items() if value}


def shown(path: str) -> str:
    """A path as an error repeats it."""
    return path if len(path) <= MAX_SHOWN_LENGTH else f"{path[:MAX_SHOWN_LENGTH]}..."
