"""The route table: which path and method is answered by what.

Does: match paths, choose the dialect and the model of an inference route, run it.
Does not: generate (the responder does) or build management bodies (management does). Called by the app, on the event loop.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dragoman.errors import ServerError, TooLarge, Unauthorized
from dragoman.server.dialects.base import Dialect, HttpCall
from dragoman.server.dialects.choose import choose
from dragoman.server.dialects.models_list import peek_model
from dragoman.server.exchange import Exchange
from dragoman.server.registry import DialectSet, ModelRegistry
from dragoman.server.responder import Responder, error_reply

PathParams = Mapping[str, str]
Handler = Callable[[Exchange, PathParams], Awaitable[None]]
PickDialect = Callable[[DialectSet, HttpCall], Dialect]
PickModel = Callable[[HttpCall], str | None]


@dataclass(frozen=True, slots=True)
class Route:
    """One path and its handlers by method. In `path`, a single `{name}` stands for any text, slashes included."""

    path: str
    handlers: Mapping[str, Handler] = field(default_factory=dict)

    @property
    def allow(self) -> str:
        """The `Allow` header: what this path answers to."""
        methods = set(self.handlers) | {"OPTIONS"} | ({"HEAD"} if "GET" in self.handlers else set())
        return ", ".join(sorted(methods))

    def handler(self, method: str) -> Handler | None:
        """The handler of that method; HEAD is GET whose body the protocol leaves out."""
        return self.handlers.get("GET" if method == "HEAD" else method)


class Match(NamedTuple):
    """A route that fits a path, with what stood in the place of `{name}`."""

    route: Route
    path_params: PathParams


class _Pattern(NamedTuple):
    prefix: str
    name: str
    suffix: str
    route: Route


class RouteTable:
    """Routes by path: a dictionary for fixed paths, a short list for those with a name in them."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._fixed: dict[str, Route] = {}
        self._patterns: list[_Pattern] = []
        for route in routes:
            prefix, brace, rest = route.path.partition("{")
            name, _, suffix = rest.partition("}")
            if brace:
                self._patterns.append(_Pattern(prefix, name, suffix, route))
            elif route.path in self._fixed:
                raise ValueError(f"route {route.path} is declared twice")
            else:
                self._fixed[route.path] = route

    def match(self, path: str) -> Match | None:
        """The route of `path`: fixed paths first, then patterns in their order; None if there is none."""
        route = self._fixed.get(path)
        if route is not None:
            return Match(route, {})
        for prefix, name, suffix, pattern_route in self._patterns:
            if path.startswith(prefix) and path.endswith(suffix) and len(path) > len(prefix) + len(suffix):
                return Match(pattern_route, {name: path[len(prefix) : len(path) - len(suffix)]})
        return None


@dataclass(frozen=True, slots=True)
class Gate:
    """What every inference call has to pass before its body is parsed. `api_keys` empty = open to all."""

    max_request_size_bytes: int
    api_keys: frozenset[str]

    def check_key(self, http: HttpCall) -> None:
        """Raises: Unauthorized unless the call carries one of the keys as a bearer token."""
        if not self.api_keys:
            return
        scheme, _, given = http.headers.get("authorization", "").partition(" ")
        token = given.strip().encode("latin-1", "replace")
        # every key is compared, in constant time, so that the time taken tells nothing about them
        matches = [hmac.compare_digest(token, key.encode()) for key in self.api_keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise Unauthorized("The API key is missing or wrong: send it as `Authorization: Bearer <key>`")


class InferenceRoutes:
    """Makes the handlers of the inference routes."""

    def __init__(self, registry: ModelRegistry, responder: Responder, gate: Gate) -> None:
        self._registry = registry
        self._responder = responder
        self._gate = gate

    def handler(self, pick_dialect: PickDialect, pick_model: PickModel) -> Handler:
        """A handler that answers with the dialect and the model that the two functions choose."""

        async def handle(exchange: Exchange, path_params: PathParams) -> None:
            early = exchange.http_call(path_params=path_params)
            try:
                self._gate.check_key(early)
                body = await exchange.read_body(self._gate.max_request_size_bytes)
            except ServerError as error:
                reply = error_reply(pick_dialect(self._registry.dialects, early), error, early)
                refuse = exchange.refuse_upload if isinstance(error, TooLarge) else exchange.send_reply
                return await refuse(reply)
            with self._responder.claim_id(exchange.request_id) as call_id:
                http = exchange.http_call(body, path_params, call_id)
                await self._infer(exchange, http, pick_dialect, pick_model)
            return None

        return handle

    async def _infer(
        self, exchange: Exchange, http: HttpCall, pick_dialect: PickDialect, pick_model: PickModel
    ) -> None:
        try:
            model = self._registry.find(pick_model(http))
        except ServerError as error:
            dialect = pick_dialect(self._registry.dialects, http)
            await exchange.send_reply(error_reply(dialect, error, http))
        else:
            await self._responder.respond(exchange, model, pick_dialect(model.dialects, http), http)

    def routes(self) -> list[Route]:
        """All inference routes."""

        def post(path: str, pick_dialect: PickDialect, pick_model: PickModel) -> Route:
            return Route(path, {"POST": self.handler(pick_dialect, pick_model)})

        return [
            post("/invocations", invocations_dialect, model_of_query_or_header),
            post("/predictions/{model}", invocations_dialect, model_of_path),
            post("/models/{model}/invoke", invocations_dialect, model_of_path),
            post("/v1/chat/completions", lambda dialects, _: dialects.chat_v1, model_of_body),
            post("/v1/completions", lambda dialects, _: dialects.completions_v1, model_of_body),
            post("/v3/chat/completions", lambda dialects, _: dialects.chat_v3, model_of_body),
            post("/v3/completions", lambda dialects, _: dialects.completions_v3, model_of_body),
            post("/api/generate-one", lambda dialects, _: dialects.text, model_of_query_or_header),
            post("/api/generate-batch", lambda dialects, _: dialects.text, model_of_query_or_header),
            post("/", lambda dialects, _: dialects.tgi, model_of_query_or_header),
            post("/generate", lambda dialects, _: dialects.tgi, model_of_query_or_header),
            post("/generate_stream", lambda dialects, _: dialects.tgi, model_of_query_or_header),
        ]


def invocations_dialect(dialects: DialectSet, http: HttpCall) -> Dialect:
    """The dialect of a body on an LMI route, by its shape."""
    match choose(http):
        case "chat":
            return dialects.chat_invocations
        case "completions":
            return dialects.completions_invocations
        case "lmi":
            return dialects.lmi


def model_of_query_or_header(http: HttpCall) -> str | None:
    """`?model_name=`, else the header `model_name`, else None."""
    return http.query.get("model_name") or http.headers.get("model_name") or None


def model_of_path(http: HttpCall) -> str | None:
    """The model named in the path."""
    return http.path_params["model"]


def model_of_body(http: HttpCall) -> str | None:
    """The body's `model`, None where it is absent or the body is not an object: the dialect reports that."""
    return peek_model(http.body)
