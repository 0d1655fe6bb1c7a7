"""The routes that generate nothing: health, model lists, metrics, this description itself.

Does: describe them, and every parameter that is not in a body. Does not: know which routes a server has.
Used when the document is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.metrics import METRICS_MEDIA_TYPE
from dragoman.server.apis.models_list import DEFAULT_PAGE_SIZE
from dragoman.server.framing import JSON_MEDIA_TYPE
from dragoman.server.openapi.errors import Answer, Answers, Family, error_answers, front_answer, merged
from dragoman.server.openapi.json_schema import BOOLEAN, TEXT, Schema, ref
from dragoman.server.openapi.operations import Key, Operation

HTML_MEDIA_TYPE = "text/html; charset=utf-8"

_LOADING = ("unavailable", "engine_dead")


def _json(schema: str, description: str) -> Answer:
    return Answer(description, {JSON_MEDIA_TYPE: ref(schema)})


def _listed(schema: str, family: Family, *kinds: str) -> Answers:
    return merged(
        {200: _json(schema, "the list" if "List" in schema else "the description")}, error_answers(family, kinds)
    )


def _named(schema: str, family: Family) -> Answers:
    return _listed(schema, family, "unauthorized", "not_found", *_LOADING)


_READY = {
    200: _json("ModelStatuses", "every model takes requests"),
    500: _json("ModelStatuses", "an engine is dead, or loading failed"),
    503: _json("ModelStatuses", "loading or shutting down"),
}
_LIVE = {200: _json("Liveness", "the process is alive"), 500: _json("Liveness", "only a restart helps")}


def _index(health: Answer) -> Answer:
    return Answer(health.description, {JSON_MEDIA_TYPE: ref("Index"), HTML_MEDIA_TYPE: TEXT}, ("Vary",))


def _health(summary: str, answers: Answers) -> Operation:
    return Operation("Health", summary, answers, needs_key=False)


def _page(summary: str, media_type: str, schema: Schema) -> Operation:
    return Operation("Health", summary, {200: Answer("the page", {media_type: schema})}, needs_key=False)


MANAGEMENT: Mapping[Key, Operation] = {
    ("GET", "/ping"): _health("Readiness, as SageMaker asks for it", _READY),
    ("POST", "/ping"): _health("Readiness, for clients that can only POST", _READY),
    ("GET", "/v2/health/ready"): _health("Readiness", _READY),
    ("GET", "/health"): _health("Readiness, where clients of vLLM and TGI wait for it", _READY),
    ("GET", "/v2/health/live"): _health("Liveness", _LIVE),
    ("GET", "/"): Operation(
        "Health",
        "What this server is, as ready as `/ping`",
        {status: _index(answer) for status, answer in _READY.items()},
        "Browsers get the page of `/docs`.",
        needs_key=False,
    ),
    ("GET", "/metrics"): _page("Metrics for Prometheus", METRICS_MEDIA_TYPE, TEXT),
    ("GET", "/server/metrics"): _page("The same, where LMI has it", METRICS_MEDIA_TYPE, TEXT),
    ("GET", "/openapi.json"): _page("This document", JSON_MEDIA_TYPE, {"type": "object"}),
    ("GET", "/docs"): _page("A page to read this document and try the routes", HTML_MEDIA_TYPE, TEXT),
    ("GET", "/info"): Operation(
        "Text Generation Inference",
        "The default model and its limits",
        _listed("TgiInfo", "tgi", "unauthorized", *_LOADING),
    ),
    ("GET", "/v1/models"): Operation(
        "Models", "The models, as OpenAI lists them", _listed("OpenAiModelList", "openai", "unauthorized")
    ),
    ("GET", "/v1/models/{name}"): Operation(
        "Models", "One model", _named("OpenAiModel", "openai"), parameters=("name_path",)
    ),
    ("GET", "/v3/models"): Operation(
        "Models", "The models, as OpenVINO Model Server lists them", _listed("OpenAiModelList", "ovms", "unauthorized")
    ),
    ("GET", "/v3/models/{name}"): Operation(
        "Models", "One model", _named("OpenAiModel", "ovms"), parameters=("name_path",)
    ),
    ("GET", "/models"): Operation(
        "Models",
        "The models, as LMI lists them",
        merged(
            _listed("LmiModelList", "lmi", "unauthorized"), {400: front_answer("`limit` or `next_page_token` is wrong")}
        ),
        parameters=("limit_query", "next_page_token_query"),
    ),
    ("GET", "/models/{name}"): Operation(
        "Models", "One model with its queue and workers", _named("LmiModel", "lmi"), parameters=("name_path",)
    ),
}


def _parameter(where: str, name: str, text: str, schema: Schema) -> dict[str, Any]:
    required = {"required": True} if where == "path" else {}
    return {"in": where, "name": name, **required, "description": text, "schema": schema}


def _count(low: int, default: int) -> Schema:
    return {"anyOf": [{"type": "integer", "minimum": low}, {"const": ""}], "default": default}


_EMPTY = "; an empty value counts as absent"
_WHICH = "the model to use; the default model if absent"
_VERSION = "the version that the model must have"

PARAMETERS: Mapping[str, dict[str, Any]] = {
    "x-request-id": _parameter("header", "x-request-id", "names the request in answers and logs", TEXT),
    "model_path": _parameter("path", "model", "the model's name; `name/version` asks for that version", TEXT),
    "name_path": _parameter("path", "name", "the model's name", TEXT),
    "endpoint_name": _parameter("path", "name", "a model's name; any other name means the default model", TEXT),
    "model_name_query": _parameter("query", "model_name", _WHICH, TEXT),
    "model_name_header": _parameter("header", "model_name", f"{_WHICH}; the query wins", TEXT),
    "model_version_query": _parameter("query", "model_version", _VERSION, TEXT),
    "model_version_header": _parameter("header", "model_version", _VERSION, TEXT),
    "stream_query": _parameter(
        "query",
        "stream",
        "false waits for the whole text and gives the exact status; an empty value means true",
        {"enum": ["true", "false", "1", "0", ""], "default": "true"},
    ),
    "limit_query": _parameter("query", "limit", f"most models on a page{_EMPTY}", _count(1, DEFAULT_PAGE_SIZE)),
    "next_page_token_query": _parameter("query", "next_page_token", f"where the page begins{_EMPTY}", _count(0, 0)),
    "x-synchronous": _parameter(
        "header", "x-synchronous", "false: answer at once with a token to poll with", {**BOOLEAN, "default": True}
    ),
    "x-starting-token": _parameter(
        "header", "x-starting-token", "a poll: send what was answered since this token was made", TEXT
    ),
    "x-max-items": _parameter(
        "header",
        "x-max-items",
        "a poll: at most this many records",
        {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    ),
    "x-amzn-sagemaker-target-model": _parameter("header", "X-Amzn-SageMaker-Target-Model", "the model to use", TEXT),
    "x-amzn-sagemaker-inference-component": _parameter(
        "header", "X-Amzn-SageMaker-Inference-Component", "the model to use", TEXT
    ),
}
"""Everything that calls say outside their bodies."""


def _header(text: str, schema: Schema = TEXT) -> dict[str, Any]:
    return {"description": text, "schema": schema}


HEADERS: Mapping[str, dict[str, Any]] = {
    "x-request-id": _header("the call's own id, or a fresh one"),
    "x-dragoman-ignored": _header("names of parameters that were accepted and had no effect, separated by commas"),
    "x-next-token": _header("the token to poll with next, as long as more may come"),
    "X-Amzn-SageMaker-Custom-Attributes": _header("`x-next-token=TOKEN`, which SageMaker's runtime hands on"),
    "x-Amzn-Invoked-Production-Variant": _header("the variant that was asked for, or the only one"),
    "Retry-After": _header("seconds after which to try again", {"type": "integer", "minimum": 1}),
    "WWW-Authenticate": _header("the scheme of the key: Bearer"),
    "Vary": _header("the answer depends on `Accept`"),
    "Trailer": _header("the trailers that follow, for clients that take them"),
}
"""The headers of answers that mean something to clients."""
