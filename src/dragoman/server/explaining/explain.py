"""`POST /explain`: takes a call the way of real ones, and tells what would be done. On the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable
from urllib.parse import parse_qsl, urlsplit

import msgspec

from dragoman.engine.base import check_request
from dragoman.errors import InvalidPayload, NotLoaded, ServerError, WrongMethod
from dragoman.server.api import JSON_MEDIA_TYPE, Call, ErrorTeller, HttpCall, ModelProfile, on_thread
from dragoman.server.endpoints import Route, RouteTable, check_version, dialect_of
from dragoman.server.explaining.report import (
    ExplainedCall,
    ExplainedLimits,
    ExplainedPrompt,
    Explanation,
    Ignored,
    Parameter,
    Refusal,
)
from dragoman.server.explaining.sources import told
from dragoman.server.generation.prepare import PreparedRequest
from dragoman.server.http.exchange import unfolded
from dragoman.server.http.fields import refuse_ignored, waits_of
from dragoman.server.json_body import NotJson, decode_json
from dragoman.server.observation.record import CallRecord, enter_call
from dragoman.server.operations import Api, GenerateOperation, Server
from dragoman.server.registry import ServedModel
from dragoman.server.responder import check_number, error_reply, note_patience
from dragoman.types import GenerationRequest, Limits

UNKNOWN = "no parameter of that name has an effect here"


@runtime_checkable
class Preparing(Protocol):
    async def prepare(self, request: GenerationRequest) -> PreparedRequest: ...


class _Routes:
    def __init__(self, server: Server) -> None:
        self._operations = {(one.method, one.path): (api, one) for api in server.apis for one in api.operations}
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
        asked: ExplainedCall = decode_json(http.body, ExplainedCall)
    except (NotJson, msgspec.ValidationError) as error:
        raise InvalidPayload(f"the body must be an object with path and body: {error}") from error
    call, api, operation = server.shared(_Routes).find(_http_call(asked, http.request_id, server.apis))
    record = CallRecord(call.request_id, api.name, call.path)
    enter_call(record)  # of this task, which ends with the explanation: times that clients allow are read from it
    explanation = Explanation(api=api.name, operation=f"{operation.method} {operation.path}")
    way = _Way(call, operation, explanation, dialect_of(operation, server.models.dialects, call), record)
    try:
        await _follow(way, server)
    except ServerError as error:
        explanation.refusal = _refusal(error, way)
    return explanation


def _http_call(asked: ExplainedCall, request_id: str, apis: Sequence[Api]) -> HttpCall:
    if len(asked.path) > MAX_PATH:
        raise InvalidPayload(f"path must have at most {MAX_PATH} characters, got {len(asked.path)}", param="path")
    url = urlsplit(asked.path)
    body, media_type = bytes(asked.body), JSON_MEDIA_TYPE
    if body.startswith(b'"'):
        body, media_type = str(decode_json(body)).encode(), "text/plain"
    headers = {"content-type": media_type, **{name.lower(): value for name, value in asked.headers.items()}}
    folded = [name for api in apis for name in api.folded_headers]
    return HttpCall(
        method=asked.method.upper(),
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
        explanation.ignored = [Ignored(name, call.reasons.get(name, UNKNOWN)) for name in call.ignored]
        if opening.run_off_loop in (None, on_thread):
            await _tell_parameters(way, call, model, server.apis)
        else:
            explanation.notes.append("the operator's formatter reads the call: it decides every parameter")
        check_number(call, model)
        if switches.is_strict:
            refuse_ignored(call.ignored)
        note_patience(call)
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
            explanation.parameters = [_settled(one, request, prepared) for one in explanation.parameters]
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
        told = getattr(request.prompt, "template_kwargs", {})
        if "thinking_budget" in told:
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
        body_bytes=server.max_request_size_bytes,
        timeout_s=min(timeouts, default=None),
        requests_in_flight=model.admission.num_in_flight,
        requests_allowed=model.admission.limit,
        others={one.name: getattr(model.limits, one.name) for one in fields(Limits)},
    )


def _refusal(error: ServerError, way: _Way) -> Refusal:
    reply = error_reply(way.teller, error, way.http)
    return Refusal(error.kind, error.message, error.param, reply.status, reply.body.decode("utf-8", "replace"))
