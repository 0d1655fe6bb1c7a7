"""The ASGI application: matches routes, answers failures outside dialects, adds common headers. On the event loop."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from dragoman.errors import UnknownPath, WrongMethod, failure_of
from dragoman.server.api import Reply, json_reply
from dragoman.server.apis import all_apis
from dragoman.server.batches.desk import Desk
from dragoman.server.batches.store import Store, StoreConfig
from dragoman.server.descriptions import HEADERS
from dragoman.server.endpoints import Endpoints, RouteTable, joined_routes, shown
from dragoman.server.hosting import NO_OWNER, ModelOwner
from dragoman.server.http.exchange import (
    DEFAULT_BODY_MEMORY_BYTES,
    ClientGone,
    Exchange,
    HeaderRules,
    Receive,
    Scope,
    Send,
)
from dragoman.server.http.fields import Switches
from dragoman.server.observation.request_log import LogForm, RequestLog
from dragoman.server.observation.tracing import TraceExport, open_tracing
from dragoman.server.observation.watch import Watch
from dragoman.server.registry import ModelRegistry
from dragoman.server.responder import as_server_error, error_reply
from dragoman.server.security.callers import Scope as KeyScope
from dragoman.server.security.cors import Cors, CorsRules
from dragoman.server.security.gate import ANY, AllowedHosts, Gate, Visitors
from dragoman.server.security.keyring import Keyring, KeySources

# Generated text must not be cached on the way.
CACHE_HEADERS: Mapping[str, str] = {
    "pragma": "no-cache",
    "cache-control": "no-cache; no-store, must-revalidate, private",
    "expires": "Thu, 01 Jan 1970 00:00:00 UTC",
}


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of the HTTP side. `api_keys`: bare keys, which open everything. `open_scopes`: never need a key.

    `left_out`: names of APIs. `asks_again`: engines have replicas, which may be lost during a call. `allowed_hosts`:
    besides this machine. `store` None = no files and batches. `path_prefix`: of all paths.
    """

    max_request_size_bytes: int = 64 * 1024 * 1024  # LMI's max_request_size default
    max_body_memory_bytes: int = DEFAULT_BODY_MEMORY_BYTES
    api_keys: frozenset[str] = field(default=frozenset(), repr=False)
    key_sources: KeySources = field(default_factory=KeySources)
    open_scopes: frozenset[KeyScope] = frozenset()
    cors: CorsRules = field(default_factory=CorsRules)
    log_requests: LogForm = "off"
    log_prompts: bool = False
    metrics_compat: tuple[str, ...] = ()
    switches: Switches = field(default_factory=Switches)
    traces: TraceExport | None = None
    left_out: frozenset[str] = frozenset()
    asks_again: bool = False
    allowed_hosts: tuple[str, ...] = (ANY,)
    store: StoreConfig | None = None
    path_prefix: str = ""

    def read_keys(self) -> Keyring | None:
        """All keys as they are now; None = keys are not required. Reads files. Raises: KeysError."""
        return self.key_sources.read(self.api_keys)


class App:
    def __init__(self, endpoints: Endpoints, rules: HeaderRules, path_prefix: str = "") -> None:
        self.gate = endpoints.gate
        self._endpoints = endpoints
        self._cors = endpoints.gate.visitors.cors
        self._table = RouteTable(joined_routes(list(endpoints.routes())))
        self._rules = rules
        self._path_prefix = path_prefix

    def start(self) -> None:
        """Resume the batches of an earlier process."""
        if self._endpoints.desk is not None:
            self._endpoints.desk.start()

    async def stop_background(self) -> None:
        if self._endpoints.desk is not None:
            await self._endpoints.desk.stop()

    async def aclose(self) -> None:
        await self._endpoints.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request. Raises: ValueError for other protocols."""
        if scope["type"] != "http":
            raise ValueError(f"scope type {scope['type']!r} is not supported, only 'http' is")
        exchange = Exchange(scope, receive, send, self._rules)
        if self._cors is not None:
            exchange.also_sent = self._cors.headers(exchange.headers.get("origin"))
        try:
            await self._dispatch(exchange)
        except ClientGone:
            return
        except BaseException as error:  # request boundary: whatever is raised is answered, or ends the connection
            http = exchange.http_call()
            failure = as_server_error(failure_of(error), http)
            if exchange.is_started:
                await exchange.cut()
            else:
                reply = error_reply(self._endpoints.owner(exchange.path), failure, http)
                await exchange.send_reply(reply)
                if exchange.api and not exchange.is_refused:
                    self._endpoints.watch.refused(exchange.api, exchange, failure)

    async def _strip_prefix(self, exchange: Exchange) -> bool:
        """Remove the prefix from the path. Returns True if the call is answered. Raises: UnknownPath."""
        prefix, path = self._path_prefix, exchange.path
        if path == prefix:  # relative addresses in pages need the slash
            await exchange.send_reply(Reply(307, b"", "", {"location": f"{prefix}/"}))
            return True
        if not path.startswith(f"{prefix}/"):
            raise UnknownPath(f"Unknown path {shown(path)}: all paths begin with {prefix} here")
        exchange.path = path.removeprefix(prefix)
        return False

    async def _dispatch(self, exchange: Exchange) -> None:
        """Raises: Forbidden, UnknownPath, WrongMethod, and what the handler raises."""
        self.gate.visitors.hosts.check(exchange.headers)
        if self._path_prefix and await self._strip_prefix(exchange):
            return None
        match = self._table.match(exchange.path)
        if match is None and "//" in exchange.path:
            exchange.path = re.sub("/{2,}", "/", exchange.path)
            match = self._table.match(exchange.path)
        if match is None:
            raise self._table.unknown(exchange.path)
        handler = match.route.handler(exchange.method)
        if handler is not None:
            return await handler(exchange, match.path_params)
        allow = match.route.allow
        if exchange.method == "OPTIONS":
            headers = {} if self._cors is None else self._cors.preflight(exchange.headers, allow)
            return await exchange.send_reply(json_reply(200, {}, {"allow": allow, **headers}))
        why = match.route.absences.get(exchange.method) or f"{allow} are"
        raise WrongMethod(f"{exchange.method} is not allowed for {shown(exchange.path)}: {why}", allow=allow)


def build_app(registry: ModelRegistry, config: ServerConfig, owner: ModelOwner = NO_OWNER) -> App:
    """The application over `registry`, which may be filled later. Reads files. Raises: KeysError, StoreError."""
    apis = tuple(api for api in all_apis() if api.name not in config.left_out)
    rules = HeaderRules(
        sent=CACHE_HEADERS,
        naming=("x-request-id", *(name for api in apis for name in api.request_id_headers)),
        folded=tuple(name for api in apis for name in api.folded_headers),
    )
    log = None if config.log_requests == "off" else RequestLog(config.log_requests, shows_prompts=config.log_prompts)
    watch = Watch(log, config.metrics_compat, None if config.traces is None else open_tracing(config.traces))
    declared = [name for api in apis for name in (*HEADERS, *api.headers)]
    gate = Gate(
        config.max_request_size_bytes,
        config.read_keys(),
        config.open_scopes,
        max_body_memory_bytes=config.max_body_memory_bytes,
        visitors=Visitors(
            Cors(config.cors, declared) if config.cors.origins else None, AllowedHosts(config.allowed_hosts)
        ),
    )
    make_desk = None
    if config.store is not None:
        make_desk = partial(Desk, Store(config.store))
    endpoints = Endpoints(apis, registry, gate, owner, watch, config.switches, make_desk)
    return App(endpoints, rules, config.path_prefix)
