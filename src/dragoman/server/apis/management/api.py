"""Operations for operators, whatever API clients use: health, metrics, the description of all APIs."""

from __future__ import annotations

from functools import partial

from dragoman.metrics import METRICS_MEDIA_TYPE, OPENMETRICS_MEDIA_TYPE
from dragoman.server.api import JSON_MEDIA_TYPE
from dragoman.server.apis.management.errors import ERRORS, PlainErrors
from dragoman.server.apis.management.health import Liveness, ModelStatus, Readiness, health, live, ping, ready
from dragoman.server.apis.management.pages import HTML_MEDIA_TYPE, Index, docs, document, index, metrics
from dragoman.server.apis.management.running import CancelledCalls, RunningCall, cancel_call, running_calls
from dragoman.server.describe.answers import Answer, json_answer
from dragoman.server.describe.components import QUESTION, header, parameter
from dragoman.server.describe.json_schema import TEXT, Schema, any_of, ref
from dragoman.server.explaining.explain import explain
from dragoman.server.explaining.report import ExplainedCall, Explanation
from dragoman.server.operations import AnswerOperation, Api
from dragoman.server.security.scopes import Scope

_Statuses = dict[str, ModelStatus]

_WORDS = {
    200: "every model takes requests",
    500: "an engine is dead, or loading failed",
    503: "loading or shutting down",
}
_READY = {status: json_answer(_Statuses, words) for status, words in _WORDS.items()}
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
    for status, words in _WORDS.items()
}
_READY_V2 = {status: json_answer(Readiness, words) for status, words in _WORDS.items()}
_LIVE = {200: json_answer(Liveness, "the process is alive"), 500: json_answer(Liveness, "only a restart helps")}


def _index_answer(words: str) -> Answer:
    return Answer(words, {HTML_MEDIA_TYPE: TEXT, JSON_MEDIA_TYPE: Index}, ("Vary",))


_operation = partial(AnswerOperation, tag="Health", scope=Scope.OPEN)
_get = partial(_operation, method="GET")


def _page(media_type: str, schema: Schema) -> dict[int, Answer]:
    return {200: Answer("the page", {media_type: schema})}


_TELLER = PlainErrors()
_METRICS = {
    200: Answer("the page", {METRICS_MEDIA_TYPE: TEXT, OPENMETRICS_MEDIA_TYPE: TEXT}, ("Vary",)),
    **ERRORS.answers(("unauthorized",)),
}

API = Api(
    name="management",
    title="operation",
    needs_engine=False,
    owns=("/debug", "/cancel", "/explain", "/metrics", "/server/metrics"),
    teller=lambda dialects: _TELLER,
    operations=(
        _get(path="/ping", summary="Readiness, as SageMaker asks for it", answers=_READY, answer=ping),
        _operation(
            method="POST",
            path="/ping",
            summary="Readiness, for clients that can only POST",
            answers=_READY,
            answer=ping,
        ),
        _get(
            path="/health",
            summary="Readiness, where clients of vLLM, TGI and llama.cpp wait for it",
            answers=_HEALTH,
            answer=health,
        ),
        _get(path="/v1/health", summary="The same", answers=_HEALTH, answer=health),
        _get(path="/v2/health/live", summary="Liveness, as KServe's clients ask for it", answers=_LIVE, answer=live),
        _get(
            path="/v2/health/ready",
            summary="Readiness, as KServe's clients ask for it",
            answers=_READY_V2,
            answer=ready,
        ),
        _get(
            path="/metrics",
            summary="Metrics for Prometheus",
            answers=_METRICS,
            answer=metrics,
            scope=Scope.METRICS,
        ),
        _get(
            path="/server/metrics",
            summary="The same, where LMI has it",
            answers=_METRICS,
            answer=metrics,
            scope=Scope.METRICS,
        ),
        _get(
            path="/",
            summary="What this server is, as ready as `/ping`",
            description="Browsers are sent to `/playground` once the server is ready, and get that page at once until then; "
            "where it is switched off, they get the page of `/docs`.",
            answers={
                307: Answer("browsers are sent to the playground", headers=("Location", "Vary")),
                **{status: _index_answer(words) for status, words in _WORDS.items()},
            },
            answer=index,
        ),
        _get(
            path="/openapi.json",
            summary="This document",
            answers=_page(JSON_MEDIA_TYPE, {"type": "object"}),
            answer=document,
        ),
        _get(
            path="/docs",
            summary="A page to read this document and try the routes",
            answers=_page(HTML_MEDIA_TYPE, TEXT),
            answer=docs,
        ),
        _get(
            path="/debug/requests",
            summary="The calls that run or wait now",
            description="Oldest first. `state` is `waiting` until a call has its first token.",
            answers={200: json_answer(list[RunningCall], "the calls"), **ERRORS.answers(("unauthorized",))},
            answer=running_calls,
            scope=Scope.DEBUG,
        ),
        _operation(
            method="POST",
            path="/cancel/{request_id}",
            summary="End a call, named by its `x-request-id`",
            description="Its client gets an error; nothing more is computed for it.",
            parameters=("request_id",),
            answers={
                200: json_answer(CancelledCalls, "it was told to end"),
                **ERRORS.answers(("unauthorized", "not_found")),
            },
            answer=cancel_call,
            scope=Scope.DEBUG,
        ),
        _operation(
            method="POST",
            path="/explain",
            summary="What would be done with a call, without doing it",
            description="The call's API and model, its prompts as the model would see them, every parameter with who "
            "decided it, what is ignored and why, the limits, and the error if it would be refused.",
            body={JSON_MEDIA_TYPE: ExplainedCall},
            example={"path": "/v1/completions", "body": {"prompt": QUESTION, "max_tokens": 32}},
            answers={
                200: json_answer(Explanation, "the explanation, also of a call that would be refused"),
                **ERRORS.answers(("unauthorized", "invalid_payload", "unknown_path", "wrong_method", "too_large")),
            },
            answer=explain,
            scope=Scope.DEBUG,
        ),
    ),
    parameters={"request_id": parameter("path", "request_id", "the request's id", TEXT)},
    headers={"Vary": header("the answer depends on `Accept`"), "Location": header("where it is")},
)
