"""The errors of each dialect as responses: statuses from the dialect's own table, and the schemas of their bodies.

Does: group error kinds by status. Does not: describe answers. Called when the document is built.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from dragoman.errors import ALL_KINDS, ServerError
from dragoman.server.apis.lmi import errors as lmi_errors
from dragoman.server.apis.openai_wire import errors as openai_errors
from dragoman.server.apis.text import dialect as text
from dragoman.server.apis.tgi import dialect as tgi
from dragoman.server.framing import JSON_MEDIA_TYPE, TEXT_MEDIA_TYPE
from dragoman.server.openapi.json_schema import BOOLEAN, INTEGER, NULL, TEXT, Schema, an_object, any_of, ref

Family = Literal["openai", "ovms", "lmi", "tgi", "text", "text_batch", "sagemaker"]

WORDS: Mapping[str, str] = {
    "invalid_request": "the request cannot be served as written",
    "invalid_payload": "the body is malformed or lacks a field",
    "invalid_parameter": "a parameter has a wrong type or range, or contradicts another",
    "unsupported": "this model or engine cannot do it",
    "not_found": "no such model",
    "unauthorized": "the API key is missing or wrong",
    "too_large": "the body exceeds the size limit",
    "overloaded": "the queue is full",
    "unavailable": "the server is loading or shutting down",
    "conflict": "it exists already, or is being changed by somebody else",
    "no_memory": "the model does not fit into the memory that is left",
    "unknown_path": "there is no such path",
    "wrong_method": "the path answers to other methods",
    "timeout": "the request took longer than the operator allows",
    "cancelled": "the request was aborted",
    "capacity": "the prompt, or prompt and limit, exceed the context",
    "engine_failed": "the generation failed",
    "engine_dead": "the engine has stopped",
    "hook_error": "the operator's own formatter failed",
    "server_error": "a defect of the server; see its log",
}
"""When each kind of error is answered, in words."""


UNROUTED = ("unknown_path", "wrong_method", "conflict", "no_memory")
"""Kinds that no operation that generates answers with: they tell that there is none, or concern loading models."""

ROUTED = tuple(kind for kind in ALL_KINDS if kind not in UNROUTED)


@dataclass(frozen=True, slots=True)
class Answer:
    """One status of an operation: when, and what by media type. `headers`: names of header components."""

    description: str
    content: Mapping[str, Schema] = field(default_factory=dict)
    headers: tuple[str, ...] = ()

    def or_else(self, other: Answer) -> Answer:
        """This answer or the other one, under the same status."""
        merged = dict(self.content)
        for media_type, schema in other.content.items():
            merged[media_type] = _either(merged.get(media_type), schema)
        words = dict.fromkeys((*self.description.split("; "), *other.description.split("; ")))
        return Answer("; ".join(words), merged, tuple(dict.fromkeys((*self.headers, *other.headers))))


Answers = Mapping[int, Answer]


def merged(*parts: Answers) -> dict[int, Answer]:
    """All answers of several families; those of one status are put together."""
    together: dict[int, Answer] = {}
    for part in parts:
        for status, answer in part.items():
            together[status] = together[status].or_else(answer) if status in together else answer
    return dict(sorted(together.items()))


def error_answers(family: Family, kinds: Collection[str] = ROUTED) -> dict[int, Answer]:
    """The errors of a family of routes, by status. `kinds`: those that can occur there."""
    by_status: dict[int, Answer] = {}
    for kind in kinds:
        status = _STATUSES[family][kind]
        answer = Answer(WORDS[kind], _content(family, status), _HEADERS.get(kind, ()))
        by_status[status] = by_status[status].or_else(answer) if status in by_status else answer
    return by_status


def front_answer(description: str) -> Answer:
    """An error of the front end."""
    return Answer(description, {JSON_MEDIA_TYPE: ref("FrontError")})


def error_schemas() -> dict[str, Schema]:
    """The components of all error bodies."""
    code: Schema = {**INTEGER, "description": "the HTTP status"}
    nothing = {"generated_tokens": NULL, "inputs": NULL}
    failed: Schema = {
        "generated_text": {"const": ""},
        "details": an_object({"finish_reason": {"const": "error"}, **nothing}, {"tokens": NULL}),
        "error": TEXT,
        "code": code,
    }
    tgi_type = {"error_type": {**TEXT, "description": "with tgi_compat"}}
    token = an_object({"id": {"const": -1}, "text": {"const": ""}, "log_prob": {"const": -1}, "special_token": BOOLEAN})
    dynamic = an_object({"code": code, "message": TEXT, "error": TEXT}, text="in dynamic batch mode")
    return {
        "OpenAiError": _openai_error(),
        "OvmsError": an_object({"error": TEXT}),
        "FrontError": an_object({"code": code, "type": TEXT, "message": TEXT}, {"error": TEXT, **tgi_type}),
        "LmiError": any_of(
            an_object(failed, tgi_type, "a generation parameter is wrong, or the generation failed"),
            an_object({"error": TEXT, "code": code}, tgi_type, "the payload is wrong"),
            dynamic,
            ref("LmiStreamError"),
        ),
        "LmiStreamError": any_of(
            an_object({"token": token, **failed}, tgi_type, "the last object of a stream that failed, or its only one"),
            dynamic,
        ),
        "LmiChatError": an_object({"error": TEXT, "code": code}),
        "TgiError": an_object({"error": TEXT, "error_type": {"enum": sorted(_tgi_types())}}),
        "TextError": an_object({"error": TEXT}),
        "SageMakerError": an_object(
            {"Message": TEXT, "OriginalStatusCode": INTEGER, "OriginalMessage": TEXT},
            text="ModelError: the container's own error and its status",
        ),
    }


def _openai_error() -> Schema:
    from_table = [row.body(ServerError(""))["error"] for row in openai_errors.OPENAI_ERRORS.values()]
    return an_object(
        {
            "error": an_object(
                {
                    "message": TEXT,
                    "type": {"enum": sorted({row["type"] for row in from_table})},
                    "param": {"type": ["string", "null"]},
                    "code": {"enum": [*sorted({row["code"] for row in from_table} - {None}), None]},
                }
            )
        }
    )


def _tgi_types() -> set[str]:
    return {row.error_type for row in tgi.ERRORS.values()}


def _either(one: Schema | None, other: Schema) -> Schema:
    if one is None or one == other:
        return other
    choices = one["anyOf"] if set(one) == {"anyOf"} else [one]
    return one if other in choices else any_of(*choices, other)


def _content(family: Family, status: int) -> dict[str, Schema]:
    match family:
        case "openai":
            return {JSON_MEDIA_TYPE: ref("OpenAiError")}
        case "ovms":
            return {JSON_MEDIA_TYPE: ref("OvmsError")}
        case "tgi":
            return {JSON_MEDIA_TYPE: ref("TgiError")}
        case "text":
            return {TEXT_MEDIA_TYPE: TEXT}
        case "text_batch":
            return {JSON_MEDIA_TYPE: ref("TextError")}
        case "sagemaker":
            return {JSON_MEDIA_TYPE: ref("SageMakerError")}
        case "lmi":
            is_models = status == lmi_errors.MODEL_ERROR
            return {JSON_MEDIA_TYPE: ref("LmiError" if is_models else "FrontError")}


_HEADERS: Mapping[str, tuple[str, ...]] = {
    "overloaded": ("Retry-After",),
    "unavailable": ("Retry-After",),
    "unauthorized": ("WWW-Authenticate",),
}

_STATUSES: Mapping[Family, Mapping[str, int]] = {
    "openai": {kind: row.status for kind, row in openai_errors.OPENAI_ERRORS.items()},
    "ovms": {kind: row.status for kind, row in openai_errors.OVMS_ERRORS.items()},
    "lmi": {kind: row.status for kind, row in lmi_errors.ERRORS.items()},
    "tgi": {kind: row.status for kind, row in tgi.ERRORS.items()},
    "text": text.ERROR_STATUS,
    "text_batch": text.ERROR_STATUS,
    "sagemaker": dict.fromkeys(ALL_KINDS, lmi_errors.MODEL_ERROR),
}
