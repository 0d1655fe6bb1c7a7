"""The LMI dialect's errors: one table from kinds to statuses and bodies, before an answer has begun and inside a stream.

Sources: the LMI schema page v0.31, error responses; the front end's own errors for what never reaches a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.errors import ServerError
from dragoman.server.api import JSON_MEDIA_TYPE, Reply, json_reply
from dragoman.server.apis.lmi_wire.parameters import LmiOptions
from dragoman.server.descriptions import KINDS, Content, ErrorFamily, statuses

MODEL_ERROR = 424  # what LMI answers for everything that its handlers refuse or fail at


Code = Annotated[int, Meta(description="the HTTP status")]
TgiType = Annotated[str | UnsetType, Meta(description="with tgi_compat")]


class FrontError(msgspec.Struct):
    """An error of the front end, before a model was asked."""

    code: Code
    type: str
    message: str
    error: TgiType = UNSET
    error_type: TgiType = UNSET


class LmiShortError(msgspec.Struct):
    """The text and the status of what concerns a model, without the shape of an answer: the payload is wrong."""

    error: str
    code: Code
    error_type: TgiType = UNSET


class LmiBatchError(msgspec.Struct):
    """An error in dynamic batch mode."""

    code: Code
    message: str
    error: str
    error_type: TgiType = UNSET


class FailedDetails(msgspec.Struct):
    """The details of a failed generation."""

    finish_reason: Literal["error"]
    generated_tokens: None
    inputs: None
    tokens: UnsetType | None = UNSET


class LmiFailure(msgspec.Struct):
    """A generation parameter is wrong, or the generation failed: an answer that says so."""

    generated_text: Literal[""]
    details: FailedDetails
    error: str
    code: Code
    error_type: TgiType = UNSET


class FailedToken(msgspec.Struct):
    """The token of a stream that failed."""

    id: Literal[-1]
    text: Literal[""]
    log_prob: Literal[-1]
    special_token: bool


class LmiStreamFailure(msgspec.Struct):
    """The last object of a stream that failed, or its only one."""

    token: FailedToken
    generated_text: Literal[""]
    details: FailedDetails
    error: str
    code: Code
    error_type: TgiType = UNSET


Body = FrontError | LmiShortError | LmiBatchError | LmiFailure | LmiStreamFailure


def short_body(error: ServerError) -> LmiShortError:
    return LmiShortError(error.message, MODEL_ERROR)


def front_end_body(error: ServerError) -> FrontError:
    return FrontError(STATUSES[error.kind], FRONT_END[error.kind], error.message)


def front_reply(error: ServerError) -> Reply:
    if error.kind in FRONT_END:
        return json_reply(STATUSES[error.kind], front_end_body(error))
    return (
        front_error(500, "InternalServerException", error.message)
        if error.kind == "engine_failed"
        else bad_request(error.message)
    )


def front_error(status: int, error_type: str, message: str) -> Reply:
    return json_reply(status, FrontError(status, error_type, message))


def bad_request(message: str) -> Reply:
    """The answer to a request that LMI's front end does not pass on to a model."""
    return front_error(400, "BadRequestException", message)


FRONT_END: Mapping[str, str] = {
    "not_found": "ModelNotFoundException",
    "conflict": "ConflictException",
    "no_memory": "InsufficientMemoryException",
    "unknown_path": "ResourceNotFoundException",
    "wrong_method": "MethodNotAllowedException",
    "unauthorized": "UnauthorizedException",
    "forbidden": "ForbiddenException",
    "too_large": "RequestEntityTooLargeException",
    "overloaded": "WlmCapacityException",
    "rate_limited": "TooManyRequestsException",
    "unavailable": "ServiceUnavailableException",
    "cancelled": "WlmException",
    "engine_dead": "WlmException",
    "server_error": "InternalServerException",
}
"""The kinds that the front end tells, by its names for them; all others concern the model."""
STATUSES = {**statuses(overloaded=503), **{kind: MODEL_ERROR for kind in KINDS if kind not in FRONT_END}}

_PAYLOAD = ("invalid_request", "invalid_payload", "hook_error")
_TGI_TYPES: Mapping[str, str] = {
    **dict.fromkeys(
        ("engine_failed", "timeout", "hook_error", "cancelled", "engine_dead", "server_error"), "generation"
    ),
    **dict.fromkeys(("overloaded", "rate_limited", "unavailable"), "overloaded"),
}
"""TGI's words for kinds; others are `validation`."""


def error_reply(error: ServerError, options: LmiOptions, *, is_stream: bool = False) -> Reply:
    if error.kind in FRONT_END:
        body = _in_shape(front_end_body(error), error, options)
    elif error.kind in _PAYLOAD and not options.is_dynamic:
        body = _in_shape(short_body(error), error, options)
    else:
        body = generation_body(error, options, is_stream=is_stream)
    return json_reply(STATUSES[error.kind], body)


def generation_body(error: ServerError, options: LmiOptions, *, is_stream: bool) -> Body:
    """A failed generation, as which a stream tells any failure: its status was sent."""
    if options.is_dynamic:
        body: Body = LmiBatchError(MODEL_ERROR, "invoke handler failure", error.message)
    elif is_stream:
        details = FailedDetails("error", None, None)
        body = LmiStreamFailure(FailedToken(-1, "", -1, special_token=True), "", details, error.message, MODEL_ERROR)
    else:
        body = LmiFailure("", FailedDetails("error", None, None, None), error.message, MODEL_ERROR)
    return _in_shape(body, error, options)


def _in_shape(body: Body, error: ServerError, options: LmiOptions) -> Body:
    """The body, with two fields by which TGI's clients raise; the front end's errors have no `error` of their own."""
    if not options.is_tgi:
        return body
    return msgspec.structs.replace(body, error=error.message, error_type=_TGI_TYPES.get(error.kind, "validation"))


def _content(status: int) -> Content:
    model_errors = (LmiFailure, LmiShortError, LmiBatchError, LmiStreamFailure)
    return {JSON_MEDIA_TYPE: model_errors if status == MODEL_ERROR else FrontError}


LMI_ERRORS = ErrorFamily(STATUSES, _content)
