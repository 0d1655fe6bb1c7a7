"""Operations for operators, whatever API clients use: health, metrics, the description of all APIs."""

from __future__ import annotations

from functools import partial

from dragoman.metrics import METRICS_MEDIA_TYPE, OPENMETRICS_MEDIA_TYPE
from dragoman.server.api import JSON_MEDIA_TYPE
from dragoman.server.apis.management.health import Liveness, ModelStatus, Readiness, health, live, ping, ready
from dragoman.server.apis.management.pages import HTML_MEDIA_TYPE, Index, docs, document, index, metrics
from dragoman.server.apis.management.running import ERRORS, CancelledCalls, RunningCall, cancel_call, running_calls
from dragoman.server.describe.answers import LISTING, Answer, Answers, json_answer
from dragoman.server.describe.components import QUESTION, header, parameter
from dragoman.server.describe.json_schema import TEXT, Schema, any_of, ref
from dragoman.server.explaining.explain import explain
from dragoman.server.explaining.report import ExplainedCall, Explanation
from dragoman.server.operations import AnswerCall, AnswerOperation, Api
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


_get = partial(AnswerOperation, method="GET", tag="Health", scope=Scope.OPEN)
_debug = partial(AnswerOperation, tag="Health", scope=Scope.DEBUG)


def _tells(
    path: str, summary: str, answers: Answers, answer: AnswerCall, *, method: str = "GET", scope: Scope = Scope.OPEN
) -> AnswerOperation:
    return _get(path=path, summary=summary, answers=answers, answer=answer, method=method, scope=scope)


def _page(media_type: str, schema: Schema) -> dict[int, Answer]:
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
        _get(
            path="/",
            summary="What this server is, as ready as `/ping`",
            description="Browsers are sent to `/playground` once the server is ready, and get that page at once until then; "
            "where it is switched off, they get the page of `/docs`.",
            answers={
                307: Answer("browsers are sent to the playground", headers=("Location", "Vary")),
                **{
                    status: Answer(words, {HTML_MEDIA_TYPE: TEXT, JSON_MEDIA_TYPE: Index}, ("Vary",))
                    for status, words in _WORDS.items()
                },
            },
            answer=index,
        ),
        _tells("/openapi.json", "This document", _page(JSON_MEDIA_TYPE, {"type": "object"}), document),
        _tells("/docs", "A page to read this document and try the routes", _page(HTML_MEDIA_TYPE, TEXT), docs),
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
