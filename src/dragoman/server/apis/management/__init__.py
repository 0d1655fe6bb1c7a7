"""Health, metrics, running calls and the description of all APIs: operations for operators, whatever API clients use.

On the event loop. Health checks never wait, so that they answer however busy the models are. Without a key for it,
pages tell about the use of models only in totals; the running calls show no prompts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import cache, partial
from importlib.resources import files
from time import perf_counter
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from dragoman import __version__
from dragoman.errors import NotFound
from dragoman.server.api import JSON_MEDIA_TYPE, HttpCall, Reply, json_reply
from dragoman.server.descriptions import (
    LISTING,
    QUESTION,
    TEXT,
    Answer,
    Answers,
    Schema,
    any_of,
    header,
    json_answer,
    json_teller,
    parameter,
    ref,
    statuses,
)
from dragoman.server.explaining import ExplainedCall, Explanation, explain
from dragoman.server.http.fields import names
from dragoman.server.observation.metrics import (
    METRICS_MEDIA_TYPE,
    OPENMETRICS,
    OPENMETRICS_MEDIA_TYPE,
    MemoryMetrics,
    MetricsRegistry,
)
from dragoman.server.observation.record import CallRecord
from dragoman.server.openapi import openapi_document
from dragoman.server.operations import AnswerCall, AnswerOperation, Api, Server
from dragoman.server.registry import ModelRegistry, ServedModel, ServerState
from dragoman.server.security.callers import Scope
from dragoman.server.timings import ToldProgress, progress_of

# --- health -----------------------------------------------------------------------------------------------------------


class ModelStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The status of one model, and while it is loaded how far that is: see `LoadProgress`. `seconds`: since it began."""

    status: Literal["Healthy", "Unhealthy", "PENDING", "FAILED"]
    stage: str | UnsetType = UNSET
    fraction: float | UnsetType = UNSET
    bytes_read: int | UnsetType = UNSET
    bytes_total: int | UnsetType = UNSET
    seconds: float | UnsetType = UNSET


Statuses = Mapping[str, ModelStatus]

_WORDS = {200: "ok", 500: "error", 503: "loading model"}
_MEANINGS = {
    200: "every model takes requests",
    500: "an engine is dead, or loading failed",
    503: "loading or shutting down",
}


class Readiness(msgspec.Struct, frozen=True):
    """Readiness, as KServe's clients read it. `ready`: every model takes requests."""

    ready: bool
    models: Statuses


class Liveness(msgspec.Struct, frozen=True):
    """Unhealthy if only a restart helps; KServe's clients read `live`."""

    status: Literal["Healthy", "Unhealthy"]
    live: bool


async def ping(http: HttpCall, server: Server) -> Reply:
    """Readiness: 200, 503 while loading or draining, 500 when an engine is dead."""
    return json_reply(*readiness(server.models))


async def health(http: HttpCall, server: Server) -> Reply:
    """The same, with a word on the server as a whole that llama.cpp's clients look for."""
    status, statuses = readiness(server.models)
    return json_reply(status, {"status": _WORDS[status], **statuses})


async def ready(http: HttpCall, server: Server) -> Reply:
    """The same in KServe's words."""
    status, statuses = readiness(server.models)
    return json_reply(status, Readiness(status == 200, statuses))


async def live(http: HttpCall, server: Server) -> Reply:
    """200 as long as a restart would not help: loading, draining and a dead engine that is renewed are alive."""
    is_dead = _is_dead(server.models, for_good=True)
    return json_reply(500 if is_dead else 200, Liveness("Unhealthy" if is_dead else "Healthy", not is_dead))


def readiness(models: ModelRegistry) -> tuple[int, Statuses]:
    if _is_dead(models):
        return 500, _statuses(models)
    return 200 if models.state is ServerState.READY else 503, _statuses(models)


def _is_dead(models: ModelRegistry, *, for_good: bool = False) -> bool:
    """True if an engine takes no requests, or (`for_good`) never will again. What a drain stopped is done, not dead."""
    if models.state in (ServerState.FAILED, ServerState.DRAINING):
        return models.state is ServerState.FAILED
    healths = [model.engine.health() for model in models.models]
    return any(not health.is_alive and not (for_good and health.is_recovering) for health in healths)


def _statuses(models: ModelRegistry) -> Statuses:
    statuses = {model.name: _status(models, model) for model in models.models}
    is_failed = models.state is ServerState.FAILED
    for name in models.expected_names:
        statuses[name] = ModelStatus("FAILED") if is_failed else _pending(models, name)
    return statuses


def _status(models: ModelRegistry, model: ServedModel) -> ModelStatus:
    if models.state is ServerState.DRAINING:
        return ModelStatus("Unhealthy")
    health = model.engine.health()
    if health.is_alive:
        return ModelStatus("Healthy")
    return _pending(models, model.name) if health.is_recovering else ModelStatus("FAILED")


def _pending(models: ModelRegistry, name: str) -> ModelStatus:
    progress = models.progress_of(name)
    if progress is None:
        return ModelStatus("PENDING")
    status = ModelStatus(
        "PENDING",
        progress.stage,
        round(progress.fraction, 3),
        seconds=round(time.monotonic() - progress.begin_s, 1),
    )
    if not progress.bytes_total:
        return status
    return msgspec.structs.replace(status, bytes_read=progress.bytes_read, bytes_total=progress.bytes_total)


# --- pages ------------------------------------------------------------------------------------------------------------

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
    described = openapi_document(server.apis, server.models.profile, server.gate.needs_key)
    return Reply(200, msgspec.json.encode(described), JSON_MEDIA_TYPE)


def _metrics(server: Server) -> MetricsRegistry:
    models, watch = server.models, server.watch
    others = (models.loads, MemoryMetrics(server.gate.bodies))
    return MetricsRegistry(lambda: models.models, watch.metrics, watch.other_names, others)


async def document(http: HttpCall, server: Server) -> Reply:
    return server.shared(_document)


async def docs(http: HttpCall, server: Server) -> Reply:
    return _docs_page()


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
    operations = (operation for api in server.apis for operation in api.operations if operation.path == PLAYGROUND)
    found = next(operations, None)
    if not isinstance(found, AnswerOperation):
        return msgspec.structs.replace(_docs_page(), status=status)
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
def _docs_page() -> Reply:
    html = files("dragoman.server.apis.management").joinpath("docs.html").read_bytes()
    return Reply(200, html, HTML_MEDIA_TYPE, PAGE_HEADERS)


# --- running calls ----------------------------------------------------------------------------------------------------


class Failure(msgspec.Struct):
    """The body of an error."""

    error: str


ERRORS = json_teller(
    statuses(overloaded=503, cancelled=500, engine_dead=500), Failure, lambda error, http: Failure(error.message)
)

_LOOK_S = 0.15
_MOST_LOOKS = 3  # in whose time most steps end


class RunningCall(msgspec.Struct, frozen=True):
    """One call. `caller`: the name of its key. `age_s`: since it came; `since_last_token_s`: null = it has none yet.

    `progress`: how far it is while it waits; null = it has a token, or the engine does not tell.
    """

    id: str
    api: str
    path: str
    caller: str
    model: str
    state: Literal["waiting", "running"]
    requests: int
    age_s: float
    since_last_token_s: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    progress: ToldProgress | None = None


class CancelledCalls(msgspec.Struct, frozen=True):
    """The number of calls with that id that were told to end."""

    cancelled: int


async def cancel_call(http: HttpCall, server: Server) -> CancelledCalls:
    request_id = http.path_params["request_id"]
    if not server.watch.cancel(request_id):
        raise NotFound(f"no request {request_id[:100]!r} is running", param="request_id")
    return CancelledCalls(1)


async def running_calls(http: HttpCall, server: Server) -> list[RunningCall]:
    progress = _progress(server)
    for _ in range(_MOST_LOOKS):
        if None not in progress.values():
            break
        await asyncio.sleep(_LOOK_S)  # the engine looks when it is asked
        progress = _progress(server)
    now_s = perf_counter()
    return [_told(record, now_s, progress.get(id(record))) for record in server.watch.running]


def _progress(server: Server) -> dict[int, ToldProgress | None]:
    """The progress of calls that wait for an engine which reports it, by their records' identities; None = not known yet."""
    found: dict[int, ToldProgress | None] = {}
    for record in server.watch.running:
        model = server.models.get(record.model)
        waiting = [request for request in record.requests if request.prepared_s is not None and not request.event_s]
        if model is not None and model.profile.tells_progress and waiting:
            found[id(record)] = progress_of(model.service, [request.request_id for request in waiting])
    return found


def _told(record: CallRecord, now_s: float, progress: ToldProgress | None) -> RunningCall:
    last_s = max((times[-1] for request in record.requests for times in request.event_s), default=None)
    return RunningCall(
        id=record.call_id,
        api=record.api,
        path=record.path,
        caller=record.caller,
        model=record.model,
        state="waiting" if last_s is None else "running",
        requests=len(record.requests),
        age_s=round(now_s - record.begin_s, 3),
        since_last_token_s=None if last_s is None else round(now_s - last_s, 3),
        prompt_tokens=record.num_prompt_tokens,
        cached_tokens=record.num_cached_tokens,
        completion_tokens=record.num_completion_tokens,
        progress=progress,
    )


# --- the API ----------------------------------------------------------------------------------------------------------

_READY = {status: json_answer(dict[str, ModelStatus], words) for status, words in _MEANINGS.items()}
_STATUS = {"enum": ["ok", "loading model", "error"], "description": "of the server as a whole"}
_HEALTH = {
    status: json_answer(
        {
            "type": "object",
            "properties": {"status": any_of(_STATUS, ref("ModelStatus"))},
            "additionalProperties": ref("ModelStatus"),
        },
        words,
    )
    for status, words in _MEANINGS.items()
}
_READY_V2 = {status: json_answer(Readiness, words) for status, words in _MEANINGS.items()}
_LIVE = {200: json_answer(Liveness, "the process is alive"), 500: json_answer(Liveness, "only a restart helps")}

_debug = partial(AnswerOperation, tag="Health", scope=Scope.DEBUG)


def _tells(
    path: str,
    summary: str,
    answers: Answers,
    answer: AnswerCall,
    *,
    method: str = "GET",
    scope: Scope = Scope.OPEN,
    description: str = "",
) -> AnswerOperation:
    return AnswerOperation(
        method=method,
        path=path,
        tag="Health",
        summary=summary,
        description=description,
        answers=answers,
        scope=scope,
        answer=answer,
    )


def _of_page(media_type: str, schema: Schema) -> dict[int, Answer]:
    return {200: Answer("the page", {media_type: schema})}


_METRICS = {
    200: Answer("the page", {METRICS_MEDIA_TYPE: TEXT, OPENMETRICS_MEDIA_TYPE: TEXT}, ("Vary",)),
    **ERRORS.answers(LISTING),
}

API = Api(
    name="management",
    title="operation",
    needs_engine=False,
    owns=("/debug", "/cancel", "/explain", "/metrics", "/server/metrics"),
    teller=lambda dialects: ERRORS,
    operations=(
        _tells("/ping", "Readiness, as SageMaker asks for it", _READY, ping),
        _tells("/ping", "Readiness, for clients that can only POST", _READY, ping, method="POST"),
        _tells("/health", "Readiness, where clients of vLLM, TGI and llama.cpp wait for it", _HEALTH, health),
        _tells("/v1/health", "The same", _HEALTH, health),
        _tells("/v2/health/live", "Liveness, as KServe's clients ask for it", _LIVE, live),
        _tells("/v2/health/ready", "Readiness, as KServe's clients ask for it", _READY_V2, ready),
        _tells("/metrics", "Metrics for Prometheus", _METRICS, metrics, scope=Scope.METRICS),
        _tells("/server/metrics", "The same, where LMI has it", _METRICS, metrics, scope=Scope.METRICS),
        _tells(
            "/",
            "What this server is, as ready as `/ping`",
            {
                307: Answer("browsers are sent to the playground", headers=("Location", "Vary")),
                **{
                    status: Answer(words, {HTML_MEDIA_TYPE: TEXT, JSON_MEDIA_TYPE: Index}, ("Vary",))
                    for status, words in _MEANINGS.items()
                },
            },
            index,
            description="Browsers are sent to `/playground` once the server is ready, and get that page at once until then; "
            "where it is switched off, they get the page of `/docs`.",
        ),
        _tells("/openapi.json", "This document", _of_page(JSON_MEDIA_TYPE, {"type": "object"}), document),
        _tells("/docs", "A page to read this document and try the routes", _of_page(HTML_MEDIA_TYPE, TEXT), docs),
        _debug(
            method="GET",
            path="/debug/requests",
            summary="The calls that run or wait now",
            description="Oldest first. `state` is `waiting` until a call has its first token.",
            answers=ERRORS.beside(json_answer(list[RunningCall], "the calls"), LISTING),
            answer=running_calls,
        ),
        _debug(
            path="/cancel/{request_id}",
            summary="End a call, named by its `x-request-id`",
            description="Its client gets an error; nothing more is computed for it.",
            parameters=("request_id",),
            answers=ERRORS.beside(json_answer(CancelledCalls, "it was told to end"), (*LISTING, "not_found")),
            answer=cancel_call,
        ),
        _debug(
            path="/explain",
            summary="What would be done with a call, without doing it",
            description="The call's API and model, its prompts as the model would see them, every parameter with who "
            "decided it, what is ignored and why, the limits, and the error if it would be refused.",
            body={JSON_MEDIA_TYPE: ExplainedCall},
            example={"path": "/v1/completions", "body": {"prompt": QUESTION, "max_tokens": 32}},
            answers=ERRORS.beside(
                json_answer(Explanation, "the explanation, also of a call that would be refused"),
                (*LISTING, "invalid_payload", "unknown_path", "wrong_method", "too_large"),
            ),
            answer=explain,
        ),
    ),
    parameters={"request_id": parameter("path", "request_id", "the request's id", TEXT)},
    headers={"Vary": header("the answer depends on `Accept`"), "Location": header("where it is")},
)
