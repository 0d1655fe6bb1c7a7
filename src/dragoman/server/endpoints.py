"""The way of a call from the app to the responder: path, key, body, dialect, model. On the event loop.

A call waits here until its model is loaded; bytes that depend only on the API keep its stream alive meanwhile.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import msgspec

from dragoman import __version__
from dragoman.coroutines import cancel_all
from dragoman.errors import NotFound, NotLoaded, RequestTimeout, ServerError, UnknownModel, UnknownPath
from dragoman.server.api import Call, Dialect, Dialects, ErrorTeller, HttpCall, Reply, StreamedReply, json_reply
from dragoman.server.batches.desk import Ask, Desk
from dragoman.server.hosting import NO_OWNER, ModelOwner
from dragoman.server.http.bodies import unpacked
from dragoman.server.http.exchange import Body, ClientGone, Exchange, HeaderRules, InnerCall
from dragoman.server.http.fields import DEADLINE_FIELDS, Switches, waits_of
from dragoman.server.observation.record import CallRecord
from dragoman.server.observation.watch import Watch
from dragoman.server.operations import AnswerOperation, Api, GenerateOperation, Operation, Server, Teller
from dragoman.server.registry import ModelRegistry, ServedModel
from dragoman.server.responder import (
    as_server_error,
    end_stream,
    error_reply,
    respond,
    run_unless_gone,
    send_streamed,
)
from dragoman.server.security.gate import CheckBody, Gate
from dragoman.types import BACKGROUND_STANDING

T = TypeVar("T")


# --- routes -----------------------------------------------------------------------------------------------------------

PathParams = Mapping[str, str]
Handler = Callable[[Exchange, PathParams], Awaitable[None]]
"""Answers a call. Raises: ServerError before anything was sent; the app answers it."""

MAX_SHOWN_LENGTH = 100
MAX_COMPARED_LENGTH = 200  # comparing takes time with the product of the lengths; no path of this server is longer


@dataclass(frozen=True, slots=True)
class Route:
    """One path and its handlers by method; in it, `{name}` stands for any text. `absences`: why a method is missing."""

    path: str
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    absences: Mapping[str, str] = field(default_factory=dict)

    @property
    def allow(self) -> str:
        methods = set(self.handlers) | {"OPTIONS"} | ({"HEAD"} if "GET" in self.handlers else set())
        return ", ".join(sorted(methods))

    def handler(self, method: str) -> Handler | None:
        """The handler of that method. HEAD is GET; the protocol omits the body."""
        return self.handlers.get("GET" if method == "HEAD" else method)


_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Match(NamedTuple):
    """A route that fits a path, with the values of its `{name}`s."""

    route: Route
    path_params: PathParams


class _Pattern(NamedTuple):
    """A path with names; `texts` stand before, between and behind them."""

    texts: Sequence[str]
    names: Sequence[str]
    route: Route

    @property
    def num_said(self) -> int:
        return sum(map(len, self.texts))

    def params(self, path: str) -> PathParams | None:
        """The names' values; the first are as long as possible. No regular expression, as its time would be quadratic."""
        first, *between, last = self.texts
        begin, end = len(first), len(path) - len(last)
        if not path.startswith(first) or not path.endswith(last):
            return None
        values: list[str] = []
        for text in reversed(between):
            place = path.rfind(text, begin + 1, max(end - 1, 0))
            if place < 0:
                return None
            values.append(path[place + len(text) : end])
            end = place
        if end <= begin:
            return None
        return dict(zip(self.names, (path[begin:end], *reversed(values)), strict=True))


class RouteTable:
    """Routes by path: a dictionary for fixed paths, a list of patterns for the others."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.paths = tuple(route.path for route in routes)
        self._fixed: dict[str, Route] = {}
        self._patterns: list[_Pattern] = []
        for route in routes:
            texts, names = _PLACEHOLDER.split(route.path)[::2], _PLACEHOLDER.findall(route.path)
            if names:
                self._patterns.append(_Pattern(texts, names, route))
            else:
                self._fixed[route.path] = route
        self._patterns.sort(key=lambda pattern: -pattern.num_said)

    def match(self, path: str) -> Match | None:
        """The route of `path`: a fixed path, else the pattern with the most fixed characters."""
        route = self._fixed.get(path)
        if route is not None:
            return Match(route, {})
        for pattern in self._patterns:
            if (params := pattern.params(path)) is not None:
                return Match(pattern.route, params)
        return None

    def unknown(self, path: str) -> UnknownPath:
        return UnknownPath(
            f"Unknown path {shown(path)}: the nearest one is {self.nearest(path)}, GET /docs describes all"
        )

    def nearest(self, path: str) -> str:
        """The most similar path of the table, of the same API if it has any (by the text before the second slash).

        First paths that continue this one, then those with the same last word, then all of the API.
        """
        seen = path[:MAX_COMPARED_LENGTH]
        whole, word = seen.rstrip("/"), seen.rpartition("/")[2]
        is_part = whole and whole not in self._fixed
        longer = [known for known in self.paths if is_part and known.startswith(f"{whole}/")]
        related = [known for known in self.paths if known.split("/")[1:2] == seen.split("/")[1:2]] or self.paths
        of_that_name = [known for known in related if word and known.rpartition("/")[2] == word]
        return max(longer or of_that_name or related, key=lambda known: SequenceMatcher(None, seen, known).ratio())


def shown(path: str) -> str:
    return path if len(path) <= MAX_SHOWN_LENGTH else f"{path[:MAX_SHOWN_LENGTH]}..."


def joined_routes(routes: Sequence[Route]) -> list[Route]:
    """One route for each path, in order. Raises: ValueError if two have the same method."""
    by_path: dict[str, Route] = {}
    for route in routes:
        known = by_path.get(route.path, Route(route.path))
        if twice := set(known.handlers) & set(route.handlers):
            raise ValueError(f"route {', '.join(sorted(twice))} {route.path} is declared twice")
        by_path[route.path] = Route(
            route.path,
            {**known.handlers, **route.handlers},
            {**known.absences, **route.absences},
        )
    return list(by_path.values())


# --- what is done at their ends ---------------------------------------------------------------------------------------


class Endpoints(Server):
    """The operations of one process, with their handlers."""

    def __init__(
        self,
        apis: tuple[Api, ...],
        models: ModelRegistry,
        gate: Gate,
        owner: ModelOwner = NO_OWNER,
        watch: Watch | None = None,
        switches: Switches | None = None,
        make_desk: Callable[[Ask], Desk] | None = None,
    ) -> None:
        present, absent = (apis, []) if owner.hosting is not None else _without_hosting(apis)
        super().__init__(present, models, gate, owner, watch, switches)
        self._absent = absent
        self._tellers = _tellers_by_path(apis)
        if make_desk is not None:
            self.desk = make_desk(self.ask)

    def routes(self) -> Iterator[Route]:
        for api in self.apis:
            for operation in api.operations:
                yield Route(operation.path, {operation.method: self._handler(api, operation)})
        for operation in self._absent:
            yield Route(operation.path, absences={operation.method: _ABSENCE})

    async def ask(self, path: str, body: bytes, caller: str) -> Reply:
        """The answer to `POST path`, a generating call of this process for a caller in the background.

        Raises: ConnectionAbortedError if the answer breaks off.
        """
        api, operation = self._generating_post(path)
        call = InnerCall(path, body, {"user-agent": _INNER_CLIENT})
        exchange = Exchange(call.scope, call.receive, call.send, HeaderRules())
        exchange.api, exchange.caller, exchange.standing = api.name, caller, BACKGROUND_STANDING
        try:
            await self._proceed(api, operation, exchange.http_call(body), Body(self.gate.bodies), exchange)
        except ConnectionAbortedError:
            raise
        except Exception as error:  # request boundary, as in the app
            http = exchange.http_call()
            await exchange.send_reply(error_reply(self.owner(path), as_server_error(error, http), http))
        answer = call.answer
        return Reply(answer.status, answer.body, answer.media_type, answer.headers)

    def _generating_post(self, path: str) -> tuple[Api, GenerateOperation]:
        api, operation = self.operations.get(("POST", path), (None, None))
        if api is None or not isinstance(operation, GenerateOperation):
            raise UnknownPath(f"POST {path} generates nothing")
        return api, operation

    def owner(self, path: str) -> ErrorTeller:
        """The encoder of errors outside operations: unknown path, wrong method, bad key, oversized body."""
        tellers = self._tellers
        longest = max(map(len, tellers))
        parts = _parts(path)[:longest]  # a path may have ten thousands of them, and no more of them matter
        owned = next(parts[:length] for length in range(len(parts), -1, -1) if parts[:length] in tellers)
        return tellers[owned](self.models.dialects)

    def _handler(self, api: Api, operation: Operation) -> Handler:
        match operation:
            case GenerateOperation():
                return self._generating(api, operation)
            case AnswerOperation():
                return self._answering(operation)
            case _:
                raise TypeError(f"{operation.method} {operation.path} neither generates nor answers")

    def _answering(self, operation: AnswerOperation) -> Handler:
        async def handle(exchange: Exchange, path_params: PathParams) -> None:
            check_body = self.gate.check(exchange, operation.scope)
            early = exchange.http_call(path_params=path_params)
            if not operation.body:
                if check_body is not None:
                    await check_body(b"")
                made = await self._answer(operation, early)
            else:
                with Body(self.gate.bodies) as held:
                    call = exchange.http_call(await self._read(exchange, check_body, held), path_params)
                    await call.decoded()
                    made = await run_unless_gone(exchange, self._answer(operation, call))
            if isinstance(made, StreamedReply):
                await send_streamed(exchange, made, early)
            else:
                await exchange.send_reply(made if isinstance(made, Reply) else json_reply(200, made))

        return handle

    def _generating(self, api: Api, operation: GenerateOperation) -> Handler:
        async def handle(exchange: Exchange, path_params: PathParams) -> None:
            exchange.api = api.name
            check_body = self.gate.check(exchange, operation.scope)
            with Body(self.gate.bodies) as held:
                body = await self._read(exchange, check_body, held)
                http = exchange.http_call(body, path_params)
                if operation.before is not None:
                    proceed = partial(self._proceed, api, operation, http, held)
                    if await operation.before(exchange, http, self, proceed):
                        return
                await self._proceed(api, operation, http, held, exchange)

        return handle

    async def _read(self, exchange: Exchange, check_body: CheckBody | None, held: Body) -> bytes:
        """The unpacked body, with its signature checked. Raises: as both, and ClientGone."""
        most = self.gate.max_request_size_bytes
        body = await exchange.read_body(most, held)
        if check_body is not None:
            await check_body(body)
        return await unpacked(body, exchange.headers, most, held) if "content-encoding" in exchange.headers else body

    async def _proceed(
        self,
        api: Api,
        operation: GenerateOperation,
        call: HttpCall,
        held: Body,
        waiting: Exchange,
    ) -> None:
        """Answer a call whose body is read and stays `held`; perhaps later, without a waiting client."""
        record = self.watch.begin(api.name, waiting, call)
        http = call if record.call_id == call.request_id else msgspec.structs.replace(call, request_id=record.call_id)
        try:
            with held:
                await http.decoded()
                await self._generate(waiting, http, operation, record)
        except ClientGone:
            record.is_client_gone = True
            raise
        finally:
            if record.caller:
                num_tokens = record.num_prompt_tokens + record.num_completion_tokens
                self.gate.limits.spend(record.caller, num_tokens)
            self.watch.end(record, waiting)

    async def _generate(
        self, exchange: Exchange, http: HttpCall, operation: GenerateOperation, record: CallRecord
    ) -> None:
        """Generate with the call's model, which may have to be loaded first."""
        record.is_kept = self.hosting is not None
        waiting: _Waiting | None = None
        async with AsyncExitStack() as stack:
            try:
                if not DEADLINE_FIELDS.isdisjoint(http.headers):
                    record.timeout_s, record.patience_s, record.timeout_name = waits_of(http.headers)
                borrowed = None if operation.borrow is None else operation.borrow(http, self)
                model = borrowed or await self._found(lambda: operation.model(http, self))
                if not isinstance(model, ServedModel):
                    dialect = dialect_of(operation, self.models.dialects, http)
                    waiting = _Waiting(exchange, dialect, http, record, self.switches.keep_alive_s)
                    model = await waiting.until(stack.enter_async_context(model))
                check_version(model, http)
            except ServerError as error:
                record.error = error
                if waiting is not None and exchange.is_started:
                    return await end_stream(exchange, waiting.call, http, record)
                dialect = dialect_of(operation, self.models.dialects, http)
                return await exchange.send_reply(error_reply(dialect, error, http))
            record.model = model.name
            dialect = dialect_of(operation, model.dialects, http)
            begun = None if waiting is None else waiting.call
            await respond(exchange, model, dialect, http, self.switches, record, begun)
        if self.hosting is not None:
            self.hosting.keep(model, record.keep_s)
        return None

    async def _found(self, name: Callable[[], str | None]) -> ServedModel | AbstractAsyncContextManager[ServedModel]:
        """The model of that name, or a context that loads it. Raises: as `ModelRegistry.find`, except `NotLoaded`."""
        for is_last in (False, True):
            try:
                return self.models.find(name())
            except NotLoaded as error:
                if self.hosting is None:
                    raise
                return self.hosting.get_or_load(error.name)
            except UnknownModel:
                if is_last or self.hosting is None:
                    raise
                await self.hosting.look()  # it may be there by now
        raise AssertionError("the second look has found or raised")

    async def _answer(self, operation: AnswerOperation, http: HttpCall) -> Any:
        """The operation's answer. Loads its model first, except for calls that only read."""
        for is_last in (False, True):
            try:
                return await operation.answer(http, self)
            except UnknownModel:
                if is_last or self.hosting is None:
                    raise
                await self.hosting.look()  # it may be there by now
            except NotLoaded as error:
                if self.hosting is None or operation.method != "POST":
                    raise
                async with self.hosting.get_or_load(error.name):
                    return await operation.answer(http, self)
        raise AssertionError("the second look has answered or raised")


def _without_hosting(apis: tuple[Api, ...]) -> tuple[tuple[Api, ...], list[Operation]]:
    """The APIs without the operations that need hosting, and these operations."""
    left = tuple(
        replace(api, operations=tuple(operation for operation in api.operations if not operation.needs_hosting))
        for api in apis
    )
    return left, [operation for api in apis for operation in api.operations if operation.needs_hosting]


# On /v1/chat/completions the client's name decides which of two documents applies.
_INNER_CLIENT = f"dragoman/{__version__} (openai)"
_ABSENCE = "models do not come and go here; start the server with --model-store DIRECTORY or --models-dir DIRECTORY"


def _tellers_by_path(apis: tuple[Api, ...]) -> dict[tuple[str, ...], Teller]:
    """The encoders of errors, by the segments of paths. Raises: ValueError unless each path has one owner."""
    tellers: dict[tuple[str, ...], Teller] = {}
    for api in apis:
        for owned in api.owns:
            if api.teller is None or _parts(owned) in tellers:
                raise ValueError(f"API {api.name} cannot own {owned!r}: another one does, or it has no teller")
            tellers[_parts(owned)] = api.teller
    if () not in tellers:
        raise ValueError('one API has to own "", which is what no other one does')
    return tellers


def _parts(path: str) -> tuple[str, ...]:
    return tuple(path.split("/")[1:])


def dialect_of(operation: GenerateOperation, dialects: Dialects, http: HttpCall) -> Dialect:
    name = operation.dialect if isinstance(operation.dialect, str) else operation.dialect(http)
    return dialects[name] if operation.wrap is None else operation.wrap(dialects[name])


def check_version(model: ServedModel, http: HttpCall) -> None:
    """Raises: NotFound if the model does not have the call's version."""
    version = http.query.get("model_version") or http.headers.get("model_version")
    if version and version != model.version:
        raise NotFound(f"Model or workflow not found: {model.name} version {version}", param="model_version")


class _Waiting:
    """One waiting call. `keep_alive_s`: the longest silence of a stream, 0 = any. `call`: parsed without its model."""

    def __init__(
        self, exchange: Exchange, dialect: Dialect, http: HttpCall, record: CallRecord, keep_alive_s: float
    ) -> None:
        self._exchange = exchange
        self._record = record
        self._keep_alive_s = keep_alive_s
        self.call = _parsed_early(dialect, http)
        self._pulse = b""

    async def until(self, work: Awaitable[T]) -> T:
        """The result of `work`. Raises: ClientGone, RequestTimeout after the client's time limit, as `work`."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(self._exchange.wait_gone())
        try:
            while True:
                left_s = self._left_s()
                pause_s = min(
                    (limit_s for limit_s in (left_s, self._keep_alive_s or None) if limit_s is not None), default=None
                )
                await asyncio.wait((task, gone), timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
                if gone.done():
                    raise gone.result()
                if (left_s := self._left_s()) is not None and left_s <= 0:
                    raise self._too_late()
                await self._keep_alive()
        finally:
            await cancel_all((task, gone))

    async def _keep_alive(self) -> None:
        call = self.call
        if call is None or not call.stream or not call.is_head_fixed or self._exchange.is_detached:
            return
        if not self._exchange.is_started:
            head = call.encoder.head([])
            self._pulse = call.encoder.keep_alive(head)
            if not self._pulse:
                self.call = None  # every byte would be part of the answer
                return
            await self._exchange.send_head(head)
        await self._exchange.send_chunk(self._pulse)

    def _left_s(self) -> float | None:
        """Seconds that the client still waits; None = no limit. Without a stream, its wait for the first byte counts."""
        record = self._record
        is_whole = self.call is not None and not self.call.stream
        limit_s = record.patience_s if record.timeout_s is None and is_whole else record.timeout_s
        return None if limit_s is None else record.begin_s + limit_s - perf_counter()

    def _too_late(self) -> ServerError:
        record = self._record
        limit_s = record.timeout_s if record.timeout_s is not None else record.patience_s
        return RequestTimeout(
            f"the request took longer than the {limit_s:g} s that the client allows ({record.timeout_name}): "
            "its model was still being loaded"
        )


def _parsed_early(dialect: Dialect, http: HttpCall) -> Call | None:
    """The call as parsed without its model; None if that fails, which the model's own dialect reports."""
    try:
        opening = dialect.open(http)
        return opening.parse() if opening.answer is None and opening.run_off_loop is None else None
    except Exception:  # the model's own dialect reports the error
        return None
