"""Explains calls without answering them: the body and the answer of `POST /explain`.

A call goes up to the engine's door. The sources of its parameters are found by parsing it again with one thing changed,
dozens of times, on a thread. Called by the management API and `dragoman explain`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Any, Literal, Protocol, runtime_checkable
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import Meta

from dragoman.engine.base import check_request
from dragoman.errors import InvalidPayload, NotLoaded, ServerError, WrongMethod
from dragoman.server.api import JSON_MEDIA_TYPE, Call, ErrorTeller, HttpCall, ModelProfile, on_thread
from dragoman.server.endpoints import Route, RouteTable, check_version, dialect_of
from dragoman.server.generation.prepare import PreparedRequest
from dragoman.server.http.exchange import unfolded
from dragoman.server.http.fields import refuse_ignored, waits_of
from dragoman.server.json_body import NotJson, decode_json
from dragoman.server.observation.record import CallRecord, enter_call
from dragoman.server.operations import Api, GenerateOperation, Server
from dragoman.server.registry import ServedModel
from dragoman.server.responder import check_number, error_reply, note_patience
from dragoman.types import GenerationRequest, Grammar, Limits, LineLimits, SamplingParams

SourceKind = Literal["request", "server option", "generation_config.json", "API default", "context length", "drawn"]
Parse = Callable[[HttpCall, ModelProfile], Call]
"""Parses a call for a model with that profile. Raises: ServerError."""

_NESTED = "parameters"  # where APIs that separate them from the prompt have them
# Fields that are part of another parameter here, or none at all; `passed_over` is in `ignored`.
_NOT_PARAMETERS = (
    "request_id",
    "prompt",
    "sampling",
    "passed_over",
    "biased_texts",
    "called_tool",
    "lines",
    "include_end_in_text",
)
_IN_USERS_WORDS = {
    "include_stop_in_text": "include_stop_str_in_output",
    "cache_key": "prompt_cache_key",
    "may_shift": "shift",
    "cache_keep_s": "seconds to keep the prompt",
    "on_overflow": "if prompt and max_tokens exceed the context",
    "parse_tool_calls": "separate tool calls",
    "parse_reasoning": "separate reasoning",
}
MAX_VARIANTS = 2_000  # that are read
MAX_WORK = 64 * 1024 * 1024  # bytes of their bodies

Values = Mapping[str, Any]
Variants = Callable[[], Iterator[HttpCall]]
"""Variants of a call with one field changed: first without it, then with other values."""


class ExplainedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as a client would send it. `body`: JSON, or a text for a body that is not JSON."""

    path: Annotated[str, Meta(min_length=1, description="with the query, if there is one")]
    method: str = "POST"
    headers: dict[str, str] = {}
    body: msgspec.Raw


class Parameter(msgspec.Struct, frozen=True):
    """One parameter in users' words. `names`: of the request's fields, or of the server's options."""

    name: str
    value: Any
    source: SourceKind
    names: list[str] = []


class Ignored(msgspec.Struct, frozen=True):
    name: str
    why: str


class ExplainedPrompt(msgspec.Struct, frozen=True):
    """One prompt of the call. `text`: as the model would see it; pictures are markers."""

    text: str
    tokens: int
    max_tokens: int
    pictures: int = 0


class ExplainedLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of the call; null = no bound. `timeout_s`: the smaller of the client's and the operator's."""

    context_tokens: int
    body_bytes: int
    timeout_s: float | None
    requests_in_flight: int
    requests_allowed: int
    others: dict[str, int | None]


class Refusal(msgspec.Struct, frozen=True):
    kind: str
    message: str
    param: str | None
    status: int
    body: str


class Explanation(msgspec.Struct, kw_only=True):
    """The explanation of a call. Parts that a refused call does not reach are empty or null."""

    api: str
    operation: str
    model: str | None = None
    adapter: str | None = None
    stream: bool | None = None
    prompts: list[ExplainedPrompt] = []
    parameters: list[Parameter] = []
    ignored: list[Ignored] = []
    other_fields: Annotated[list[str], Meta(description="that decide no parameter: the prompt, the answer's form")] = []
    limits: ExplainedLimits | None = None
    refusal: Refusal | None = None
    notes: list[str] = []


UNKNOWN = "no parameter of that name has an effect here"


@runtime_checkable
class Preparing(Protocol):
    async def prepare(self, request: GenerationRequest) -> PreparedRequest: ...


class _Routes:
    def __init__(self, server: Server) -> None:
        self._operations = {
            (operation.method, operation.path): (api, operation) for api in server.apis for operation in api.operations
        }
        self.table = RouteTable([Route(path) for path in dict.fromkeys(path for _, path in self._operations)])

    def find(self, http: HttpCall) -> tuple[HttpCall, Api, GenerateOperation]:
        """The call with its path parameters, its API and operation. Raises: UnknownPath, WrongMethod, InvalidPayload."""
        match = self.table.match(http.path)
        if match is None:
            raise self.table.unknown(http.path)
        found = self._operations.get((http.method, match.route.path))
        if found is None:
            allow = ", ".join(sorted(method for method, path in self._operations if path == match.route.path))
            why = f"{http.method[:20]} is not allowed for {match.route.path}: a method of the call must be {allow}"
            raise WrongMethod(why, param="method", allow=allow)
        api, operation = found
        if not isinstance(operation, GenerateOperation):
            raise InvalidPayload(f"path {operation.path} does not generate: there is nothing to explain", param="path")
        return msgspec.structs.replace(http, path_params=match.path_params), api, operation


MAX_PATH = 65_536  # with its query: more than a head may have


@dataclass(slots=True)
class _Way:
    http: HttpCall
    operation: GenerateOperation
    explanation: Explanation
    teller: ErrorTeller
    record: CallRecord


async def explain(http: HttpCall, server: Server) -> Explanation:
    """The explanation of the call in the body. Raises: InvalidPayload, UnknownPath, WrongMethod."""
    try:
        explained: ExplainedCall = decode_json(http.body, ExplainedCall)
    except (NotJson, msgspec.ValidationError) as error:
        raise InvalidPayload(f"the body must be an object with path and body: {error}") from error
    call, api, operation = server.shared(_Routes).find(_http_call(explained, http.request_id, server.apis))
    record = CallRecord(call.request_id, api.name, call.path)
    enter_call(record)  # of this task, which ends with the explanation: times that clients allow are read from it
    explanation = Explanation(api=api.name, operation=f"{operation.method} {operation.path}")
    way = _Way(call, operation, explanation, dialect_of(operation, server.models.dialects, call), record)
    try:
        await _follow(way, server)
    except ServerError as error:
        explanation.refusal = _refusal(error, way)
    return explanation


def _http_call(explained: ExplainedCall, request_id: str, apis: Sequence[Api]) -> HttpCall:
    if len(explained.path) > MAX_PATH:
        raise InvalidPayload(f"path must have at most {MAX_PATH} characters, got {len(explained.path)}", param="path")
    url = urlsplit(explained.path)
    body, media_type = bytes(explained.body), JSON_MEDIA_TYPE
    if body.startswith(b'"'):
        body, media_type = str(decode_json(body)).encode(), "text/plain"
    headers = {"content-type": media_type, **{name.lower(): value for name, value in explained.headers.items()}}
    folded = [name for api in apis for name in api.folded_headers]
    return HttpCall(
        method=explained.method.upper(),
        path=url.path,
        body=body,
        headers={**unfolded(headers, folded), **headers},
        query=dict(parse_qsl(url.query, keep_blank_values=True)),
        request_id=request_id,
    )


async def _follow(way: _Way, server: Server) -> None:
    """Take the call as far as possible. Raises: the error that would answer it."""
    model = _model(way, server)
    if model is None:
        return
    http, explanation = way.http, way.explanation
    explanation.model = way.record.model = model.name
    record = way.record
    record.timeout_s, record.patience_s, record.timeout_name = waits_of(http.headers)
    record.is_kept = server.hosting is not None
    check_version(model, http)
    way.teller = dialect = dialect_of(way.operation, model.dialects, http)
    explanation.limits = _limits(model, server, way.record)
    opening = dialect.open(http)
    if opening.answer is not None:
        explanation.notes.append(
            "the operator's handler is asked first; what follows holds if it leaves the call to us"
        )
    switches = server.switches.for_call(http.headers)
    with model.admission.visit():
        call = opening.parse() if opening.run_off_loop is None else await opening.run_off_loop(opening.parse)
        explanation.stream = call.stream
        explanation.ignored = [Ignored(name, why or UNKNOWN) for name, why in call.idle.items()]
        if opening.run_off_loop in (None, on_thread):
            await _tell_parameters(way, call, model, server.apis)
        else:
            explanation.notes.append("the operator's formatter reads the call: it decides every parameter")
        check_number(call, model)
        if switches.is_strict:
            refuse_ignored(call.ignored)
        note_patience(call, way.record)
        with model.admission.permit(len(call.requests), way.record, call.requests):
            pass
        await _prepare(explanation, call, model)


def _model(way: _Way, server: Server) -> ServedModel | None:
    """The model of the call; None, after a note, if it would be loaded first. Raises: as real calls."""
    name = way.operation.model(way.http, server)
    is_lent = way.operation.borrow is not None and way.operation.borrow(way.http, server) is not None
    if is_lent and (served := server.models.get(name or "")) is not None:
        return served
    try:
        if not is_lent:
            return server.models.find(name)
    except NotLoaded as error:
        if server.hosting is None:
            raise
        name = error.name
    way.explanation.model = name
    way.explanation.notes.append("the model would be loaded first, if it can be; the rest depends on it")
    return None


async def _tell_parameters(way: _Way, call: Call, model: ServedModel, apis: Sequence[Api]) -> None:
    """Add the parameters and their sources."""

    def parse(http: HttpCall, profile: ModelProfile) -> Call:
        dialects = model.dialects
        if profile is not model.profile:
            dialects = {name: dialect for api in apis for name, dialect in api.set_up(profile).items()}
        return dialect_of(way.operation, dialects, http).open(http).parse()

    found = await asyncio.to_thread(told, call, way.http, model.profile, parse)
    way.explanation.parameters, way.explanation.other_fields = found.parameters, found.other_fields
    if found.note:
        way.explanation.notes.append(found.note)


async def _prepare(explanation: Explanation, call: Call, model: ServedModel) -> None:
    """Add the requests that the engine would get. Raises: as the service and the engine do for them."""
    if not isinstance(model.service, Preparing):
        explanation.notes.append("requests of this model are not prepared here")
        return
    for index, request in enumerate(call.requests):
        prepared = await model.service.prepare(request)
        run = prepared.engine_request
        explanation.prompts.append(
            ExplainedPrompt(prepared.prompt_text, len(run.prompt_ids), run.max_tokens, len(run.pictures))
        )
        if index == 0:
            explanation.adapter = run.adapter
            explanation.parameters = [_settled(parameter, request, prepared) for parameter in explanation.parameters]
        check_request(model.engine, run)


def _settled(parameter: Parameter, request: GenerationRequest, prepared: PreparedRequest) -> Parameter:
    """The parameter, with the value and source that the preparation has given it."""
    run = prepared.engine_request
    if parameter.name == "max_tokens" and run.max_tokens != request.max_tokens:
        return Parameter("max_tokens", run.max_tokens, "context length", parameter.names)
    if parameter.name == "seed" and request.sampling.seed is None:
        return Parameter("seed", None, "drawn")
    if parameter.name == "adapter" and run.adapter != request.adapter:
        return Parameter("adapter", run.adapter, "request", ["model"])
    budget = run.sampling.thinking_token_budget
    if parameter.name == "thinking_token_budget" and budget != request.sampling.thinking_token_budget:
        kwargs = getattr(request.prompt, "template_kwargs", {})
        if "thinking_budget" in kwargs:
            return Parameter(parameter.name, budget, "request", ["chat_template_kwargs"])
        if budget is not None:
            return Parameter(parameter.name, budget, "server option", ["reasoning_budget"])
        return Parameter(parameter.name, None, parameter.source, parameter.names)
    return parameter


def _limits(model: ServedModel, server: Server, record: CallRecord) -> ExplainedLimits:
    service_s = getattr(model.service, "request_timeout_s", None)
    timeouts = [seconds for seconds in (record.timeout_s, service_s) if seconds is not None]
    return ExplainedLimits(
        context_tokens=getattr(model.service, "max_model_len", model.engine.capabilities.max_model_len),
        body_bytes=server.gate.max_request_size_bytes,
        timeout_s=min(timeouts, default=None),
        requests_in_flight=model.admission.num_in_flight,
        requests_allowed=model.admission.limit,
        others={field.name: getattr(model.limits, field.name) for field in fields(Limits)},
    )


def _refusal(error: ServerError, way: _Way) -> Refusal:
    reply = error_reply(way.teller, error, way.http)
    return Refusal(error.kind, error.message, error.param, reply.status, reply.body.decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Told:
    """`other_fields`: decide no parameter. `note`: what was not found out."""

    parameters: list[Parameter]
    other_fields: list[str]
    note: str = ""


def values_of(call: Call) -> dict[str, Any]:
    """The parameters of a call's first request, and whether it streams, in users' words."""
    request = call.requests[0]
    lines = request.lines or LineLimits()
    values = {
        "stream": call.stream,
        **msgspec.structs.asdict(request.sampling),
        **msgspec.structs.asdict(request),
        "n_indent": lines.min_indent,
        "t_max_predict_ms": None if lines.max_s is None else round(1000 * lines.max_s),
    }
    values["logit_bias"] = {**request.sampling.logit_bias, **request.biased_texts}
    if request.called_tool:
        values["tool_choice"] = {"name": request.called_tool}
    return {_IN_USERS_WORDS.get(name, name): value for name, value in values.items() if name not in _NOT_PARAMETERS}


def told(call: Call, http: HttpCall, profile: ModelProfile, parse: Parse) -> Told:
    """Each parameter of `call`, with its source."""
    values = values_of(call)
    try:
        return _told(values, frozenset(call.ignored), http, profile, _bounded(parse))
    except (_TooMuch, RecursionError):
        parameters = [Parameter(name, _plain(value), "request") for name, value in values.items()]
        return Told(parameters, [], "the body is too large to find out who decided each parameter")


class _TooMuch(Exception):
    """Going on would take too long."""


def _bounded(parse: Parse) -> Parse:
    """`parse` with bounded work. Raises: _TooMuch."""
    num_variants = num_bytes = 0

    def bounded(http: HttpCall, profile: ModelProfile) -> Call:
        nonlocal num_variants, num_bytes
        num_variants += 1
        num_bytes += len(http.body)
        if num_variants > MAX_VARIANTS or num_bytes > MAX_WORK:
            raise _TooMuch
        return parse(http, profile)

    return bounded


def _told(values: Values, ignored: frozenset[str], http: HttpCall, profile: ModelProfile, parse: Parse) -> Told:
    def read(variant: HttpCall, other: ModelProfile = profile) -> Values | None:
        try:
            return values_of(parse(variant, other))
        except ServerError:
            return None

    def decided(other: ModelProfile) -> set[str]:
        return _differing(values, [read(http, other)]) or set()

    by_field = {field: _decided(field, variants, http, values, read) for field, variants in _fields(http)}
    by_model = decided(
        replace(
            profile, generation_defaults={}, overriding_defaults={}, default_sampling=SamplingParams(temperature=0.0)
        )
    )
    by_option = {
        name: decided(replace(profile, settings=_dropped(profile.settings, name))) for name in profile.settings
    }
    parameters = []
    for name, value in values.items():
        names = [field for field, decided in by_field.items() if name in decided and field not in ignored]
        options = [option for option, decided in by_option.items() if name in decided]
        source: SourceKind = "API default"
        if names:
            source = "request"
        elif name in by_model and name in profile.default_options:
            source, names = "server option", [profile.default_options[name]]
        elif name in by_model:
            source = "generation_config.json"
        elif options:
            source, names = "server option", options
        parameters.append(Parameter(name, _plain(value), source, names))
    others = [name for name, decided in by_field.items() if not decided and name not in ignored]
    return Told(parameters, others)


def _differing(values: Values, variants: Iterable[Values | None]) -> set[str] | None:
    """The parameters with another value in a variant; None if each variant was refused."""
    found = [variant for variant in variants if variant is not None]
    return {name for variant in found for name, value in variant.items() if value != values[name]} if found else None


def _decided(
    field: str, variants: Variants, http: HttpCall, values: Values, read: Callable[[HttpCall], Values | None]
) -> set[str]:
    """The parameters that a field decides. If another field needs it, both calls are compared without that one."""
    if (found := _differing(values, map(read, variants()))) is not None:
        return found
    for rest in (next(of_other()) for other, of_other in _fields(http) if other != field):  # without the other
        if (plain := read(rest)) is None:
            continue
        for same in (of_same for name, of_same in _fields(rest) if name == field):
            if (found := _differing(plain, map(read, same()))) is not None:
                return found
    return set()


def _fields(http: HttpCall) -> Iterator[tuple[str, Variants]]:
    """The fields of the body, of its `parameters`, and of the query."""
    for name in http.query:
        yield name, partial(_without_query, http, name)
    try:
        body = http.json()
    except NotJson:
        return
    if not isinstance(body, dict):
        return
    for name, value in body.items():
        if name == _NESTED and isinstance(value, dict):
            yield from ((inner, partial(_bodies, http, body, inner, value)) for inner in value)
        else:
            yield name, partial(_bodies, http, body, name)


def _without_query(http: HttpCall, name: str) -> Iterator[HttpCall]:
    yield msgspec.structs.replace(http, query=_dropped(http.query, name))


def _bodies(http: HttpCall, body: Values, name: str, nested: Values | None = None) -> Iterator[HttpCall]:
    for changed in _objects(body if nested is None else nested, name):
        whole = changed if nested is None else {**body, _NESTED: changed}
        yield http.with_json(json.dumps(whole).encode())


def _objects(values: Values, name: str) -> Iterator[Values]:
    """The object without the field, then with other values in it: a field that repeats the default decides as well."""
    yield _dropped(values, name)
    for other in _others(values[name]):
        yield {**values, name: other}


def _others(value: Any) -> Iterator[Any]:
    match value:
        case bool():
            yield not value
        case int():
            yield value + 1
            yield value - 1
        case float():
            yield value / 2
            yield value + 0.125
        case str() if len(value) < 100:
            yield value + "x"
        case list() if len(value) < 100:
            yield value[:-1]
            yield [*value, *value[-1:]]
            if value and isinstance(value[0], dict):
                yield from ([changed, *value[1:]] for name in value[0] for changed in _objects(value[0], name))


def _dropped(values: Values, name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def _plain(value: Any) -> Any:
    return {value.kind: value.source} if isinstance(value, Grammar) else msgspec.to_builtins(value, str_keys=True)
