"""The route table: which path and method is answered by what.

Does: match paths, choose the dialect and the model of an inference route, run it.
Does not: generate (the responder does) or build management bodies (management does). Called by the app, on the event loop.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import partial
from typing import NamedTuple

from dragoman.errors import NotFound, ServerError, Unauthorized
from dragoman.server.api import Dialect, Head, HttpCall, Reply, ignores_unknown_model
from dragoman.server.apis.lmi.choose import choose
from dragoman.server.apis.lmi.deferred import DeferredAnswers, Polled, Work, is_poll, wants_deferral
from dragoman.server.apis.models_list import peek_model
from dragoman.server.apis.sagemaker.envelope import SageMakerDialect, model_error
from dragoman.server.exchange import Exchange
from dragoman.server.front import bad_request
from dragoman.server.registry import DialectSet, ModelRegistry, ServedModel
from dragoman.server.responder import Responder, error_reply

PathParams = Mapping[str, str]
Handler = Callable[[Exchange, PathParams], Awaitable[None]]
"""Answers a call. Raises: ServerError before anything was sent; the app tells it in the words of the path's owner."""

PickDialect = Callable[[DialectSet, HttpCall], Dialect]
PickModel = Callable[[HttpCall], str | None]

KEY_HEADERS = ("api-key", "x-api-key")  # beside `Authorization: Bearer`: those of Azure's and of Anthropic's clients

MAX_COMPARED_LENGTH = 200  # comparing takes time with the product of the lengths; no path of ours is longer
TEXT_PATHS = ("/api/generate-one", "/api/generate-batch")
TGI_PATHS = ("/", "/generate", "/generate_stream")


@dataclass(frozen=True, slots=True)
class Route:
    """One path and its handlers by method. In `path`, a single `{name}` stands for any text, slashes included.

    `refusals`: by method, what is answered to calls that other servers serve here and this one does not; such a method
    does not count as allowed.
    """

    path: str
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    refusals: Mapping[str, Reply] = field(default_factory=dict)

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
        self.paths = tuple(route.path for route in routes)
        self._fixed: dict[str, Route] = {}
        self._patterns: list[_Pattern] = []
        for route in routes:
            prefix, brace, rest = route.path.partition("{")
            name, _, suffix = rest.partition("}")
            if brace:
                self._patterns.append(_Pattern(prefix, name, suffix, route))
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

    def nearest(self, path: str) -> str:
        """The path of the table that `path` resembles most, the first of several; of the same API where it has any.

        An API is known by what stands before the second slash: a call to `/api/...` is not meant for `/info`.
        """
        seen = path[:MAX_COMPARED_LENGTH]
        related = [known for known in self.paths if known.split("/")[1:2] == seen.split("/")[1:2]]
        return max(related or self.paths, key=lambda known: SequenceMatcher(None, seen, known).ratio())


def joined_routes(routes: Sequence[Route]) -> list[Route]:
    """One route per path, in the order of their first mention. Raises: ValueError if two answer to the same method."""
    by_path: dict[str, Route] = {}
    for route in routes:
        known = by_path.get(route.path, Route(route.path))
        if twice := set(known.handlers) & set(route.handlers):
            raise ValueError(f"route {', '.join(sorted(twice))} {route.path} is declared twice")
        by_path[route.path] = Route(
            route.path, {**known.handlers, **route.handlers}, {**known.refusals, **route.refusals}
        )
    return list(by_path.values())


@dataclass(frozen=True, slots=True)
class Gate:
    """What every inference call has to pass before its body is parsed. `api_keys` empty = open to all."""

    max_request_size_bytes: int
    api_keys: frozenset[str]

    def check_key(self, http: HttpCall) -> None:
        """Raises: Unauthorized unless the call carries one of the keys, where clients of any of the APIs put it."""
        if not self.api_keys:
            return
        scheme, _, token = http.headers.get("authorization", "").partition(" ")
        named = [http.headers.get(name, "") for name in KEY_HEADERS]
        texts = [*named, token] if scheme.lower() == "bearer" else named
        given = [text.strip().encode("latin-1", "replace") for text in texts]
        # every key is compared, in constant time, so that the time taken tells nothing about them
        matches = [hmac.compare_digest(text, key.encode()) for key in self.api_keys for text in given]
        if not any(matches):
            raise Unauthorized(
                "The API key is missing or wrong: send it as `Authorization: Bearer`, `api-key` or `x-api-key`"
            )


@dataclass(frozen=True, slots=True)
class Inference:
    """How one inference route answers: whose dialect, which model.

    `wrap` puts the route's own shape around the dialect. `is_lmi`: LMI's front end is spoken, with its polling.
    """

    pick_dialect: PickDialect
    pick_model: PickModel
    wrap: Callable[[Dialect], Dialect] | None = None
    is_lmi: bool = False

    def dialect(self, dialects: DialectSet, http: HttpCall) -> Dialect:
        """The dialect that answers `http`."""
        own = self.pick_dialect(dialects, http)
        return own if self.wrap is None else self.wrap(own)


class InferenceRoutes:
    """Makes the handlers of the inference routes. `deferred` holds the answers that are polled for."""

    def __init__(
        self, registry: ModelRegistry, responder: Responder, gate: Gate, deferred: DeferredAnswers | None = None
    ) -> None:
        self._registry = registry
        self._responder = responder
        self._gate = gate
        self._deferred = deferred or DeferredAnswers()

    def handler(self, route: Inference) -> Handler:
        """A handler that answers with the dialect and the model that the route chooses."""

        async def handle(exchange: Exchange, path_params: PathParams) -> None:
            early = exchange.http_call(path_params=path_params)
            self._gate.check_key(early)
            body = await exchange.read_body(self._gate.max_request_size_bytes)

            async def answer(waiting: Exchange) -> None:
                with self._responder.claim_id(waiting.request_id) as call_id:
                    await self._infer(waiting, waiting.http_call(body, path_params, call_id), route)

            if not route.is_lmi or not await self._front(exchange, early, route, answer):
                await answer(exchange)

        return handle

    async def _front(self, exchange: Exchange, http: HttpCall, route: Inference, answer: Work) -> bool:
        """Do what LMI's front end does before a model is asked; True if that was all."""
        if is_poll(http):
            await self._send_polled(exchange, self._deferred.poll(http), route)
        elif "handler" in http.headers:
            await exchange.send_reply(_refusal(route, bad_request("The handler can't be overridden in a request")))
        elif wants_deferral(http):
            await exchange.send_reply(self._deferred.start(exchange, answer))
        else:
            return False
        return True

    async def _send_polled(self, exchange: Exchange, polled: Polled, route: Inference) -> None:
        reply = polled.reply
        if not polled.is_cut:
            return await exchange.send_reply(_refusal(route, reply) if polled.is_refused else reply)
        await exchange.send_head(Head(reply.media_type, reply.status, reply.headers))
        await exchange.send_chunk(reply.body)
        return await exchange.cut()

    async def _infer(self, exchange: Exchange, http: HttpCall, route: Inference) -> None:
        try:
            model = self._registry.find(route.pick_model(http))
            _check_version(model, http)
        except ServerError as error:
            await exchange.send_reply(error_reply(route.dialect(self._registry.dialects, http), error, http))
        else:
            await self._responder.respond(exchange, model, route.dialect(model.dialects, http), http)

    def routes(self) -> list[Route]:
        """All inference routes."""

        lmi = partial(Inference, invocations_dialect, is_lmi=True)
        whole = partial(SageMakerDialect, is_stream=False)
        streamed = partial(SageMakerDialect, is_stream=True)
        by_body: Mapping[str, PickDialect] = {
            "/v1/completions": lambda dialects, _: dialects.completions_v1,
            "/v3/chat/completions": lambda dialects, _: dialects.chat_v3,
            "/v3/completions": lambda dialects, _: dialects.completions_v3,
        }
        routes = {
            "/invocations": lmi(self._model_of_invocation),
            "/predictions/{model}": lmi(model_of_path),
            "/models/{model}/invoke": lmi(model_of_path),
            "/endpoints/{name}/invocations": lmi(self._model_of_endpoint, wrap=whole),
            "/endpoints/{name}/invocations-response-stream": lmi(self._model_of_endpoint, wrap=streamed),
            "/v1/chat/completions": Inference(lambda dialects, _: dialects.chat_v1, self._model_of_chat, is_lmi=True),
            **{path: Inference(pick, model_of_body) for path, pick in by_body.items()},
            **dict.fromkeys(TEXT_PATHS, Inference(lambda dialects, _: dialects.text, model_of_query_or_header)),
            **dict.fromkeys(TGI_PATHS, Inference(lambda dialects, _: dialects.tgi, model_of_query_or_header)),
        }
        return [Route(path, {"POST": self.handler(route)}) for path, route in routes.items()]

    def _model_of_invocation(self, http: HttpCall) -> str | None:
        """The model that query or header name, else the one that the body of a conversation or completion names."""
        return model_of_query_or_header(http) or (None if choose(http) == "lmi" else self._lenient(model_of_body(http)))

    def _model_of_chat(self, http: HttpCall) -> str | None:
        """The model that the body names; where LMI's shape is spoken, as LMI would have it."""
        name = model_of_body(http)
        if (
            name is None
            or self._registry.knows(name)
            or not ignores_unknown_model(self._registry.dialects.chat_v1, http)
        ):
            return name
        return self._lenient(name)

    def _lenient(self, name: str | None) -> str | None:
        """`name` where it tells models apart; None, for the default model, where there is but one and it is called else."""
        return None if name is None or (self._registry.is_single and not self._registry.knows(name)) else name

    def _model_of_endpoint(self, http: HttpCall) -> str | None:
        """The model an AWS client means: the target model or component it names, else the one called like the endpoint.

        An endpoint may be called anything, and then means the default model.
        """
        target = http.headers.get("x-amzn-sagemaker-target-model", "").lstrip("/").removesuffix(".tar.gz")
        component = http.headers.get("x-amzn-sagemaker-inference-component", "")
        name = http.path_params["name"]
        return target or component or model_of_query_or_header(http) or (name if self._registry.knows(name) else None)


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


def _check_version(model: ServedModel, http: HttpCall) -> None:
    """Raises: NotFound if the call asks for a version that the model does not have."""
    version = http.query.get("model_version") or http.headers.get("model_version")
    if version and version != model.version:
        raise NotFound(f"Model or workflow not found: {model.name} version {version}", param="model_version")


def _refusal(route: Inference, reply: Reply) -> Reply:
    """An error of LMI's front end on this route."""
    return reply if route.wrap is None else model_error(reply)
