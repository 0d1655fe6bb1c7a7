"""The LMI dialect's errors: one table from kinds to statuses and bodies.

Does: choose status and body of an error, before an answer has begun and inside a stream. Does not: decide whether a call
streams (`lmi`). Called by the LMI dialect and its encoders, on the event loop.
Sources: the LMI schema page v0.31, error responses; the front end's own errors for what never reaches a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.errors import ServerError
from dragoman.server.api import Reply
from dragoman.server.describe.answers import Content, ErrorFamily
from dragoman.server.http.framing import JSON_MEDIA_TYPE
from dragoman.server.http.replies import json_reply

MODEL_ERROR = 424  # what LMI answers for everything that its handlers refuse or fail at


class ErrorContext(msgspec.Struct, frozen=True):
    """Which form the call asked for, and so its error has."""

    is_stream: bool = False
    is_dynamic: bool = False
    is_tgi: bool = False


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
    """What the details of a failed generation can tell."""

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
BodyBuilder = Callable[[ServerError, int, ErrorContext], Body]


def payload_body(error: ServerError, status: int, context: ErrorContext) -> Body:
    """The body of a call whose payload is wrong."""
    return _batch_body(error, status) if context.is_dynamic else short_body(error)


def short_body(error: ServerError) -> LmiShortError:
    """The text and the status of what concerns a model."""
    return LmiShortError(error.message, MODEL_ERROR)


def generation_body(error: ServerError, status: int, context: ErrorContext) -> Body:
    """The body of a bad generation parameter or a failed generation."""
    if context.is_dynamic:
        return _batch_body(error, status)
    if context.is_stream:
        details = FailedDetails("error", None, None)
        return LmiStreamFailure(FailedToken(-1, "", -1, special_token=True), "", details, error.message, status)
    return LmiFailure("", FailedDetails("error", None, None, None), error.message, status)


def front_end_body(type_name: str) -> BodyBuilder:
    """A builder of bodies as the front end writes them."""

    def build(error: ServerError, status: int, context: ErrorContext) -> Body:
        return FrontError(status, type_name, error.message)

    return build


def front_error(status: int, error_type: str, message: str) -> Reply:
    """An error of LMI's front end."""
    return json_reply(status, FrontError(status, error_type, message))


def bad_request(message: str) -> Reply:
    """A request that LMI's front end does not pass on to a model."""
    return front_error(400, "BadRequestException", message)


def _batch_body(error: ServerError, status: int) -> LmiBatchError:
    return LmiBatchError(status, "invoke handler failure", error.message)


class ErrorRow(NamedTuple):
    """How one kind of error is answered. `error_type` is TGI's word for it."""

    status: int
    body: BodyBuilder
    error_type: str


ERRORS: Mapping[str, ErrorRow] = {
    "invalid_request": ErrorRow(MODEL_ERROR, payload_body, "validation"),
    "invalid_payload": ErrorRow(MODEL_ERROR, payload_body, "validation"),
    "invalid_parameter": ErrorRow(MODEL_ERROR, generation_body, "validation"),
    "unsupported": ErrorRow(MODEL_ERROR, generation_body, "validation"),
    "capacity": ErrorRow(MODEL_ERROR, generation_body, "validation"),
    "engine_failed": ErrorRow(MODEL_ERROR, generation_body, "generation"),
    "timeout": ErrorRow(MODEL_ERROR, generation_body, "generation"),
    "hook_error": ErrorRow(MODEL_ERROR, payload_body, "generation"),
    "not_found": ErrorRow(404, front_end_body("ModelNotFoundException"), "validation"),
    "conflict": ErrorRow(409, front_end_body("ConflictException"), "validation"),
    "no_memory": ErrorRow(507, front_end_body("InsufficientMemoryException"), "validation"),
    "unknown_path": ErrorRow(404, front_end_body("ResourceNotFoundException"), "validation"),
    "wrong_method": ErrorRow(405, front_end_body("MethodNotAllowedException"), "validation"),
    "unauthorized": ErrorRow(401, front_end_body("UnauthorizedException"), "validation"),
    "forbidden": ErrorRow(403, front_end_body("ForbiddenException"), "validation"),
    "too_large": ErrorRow(413, front_end_body("RequestEntityTooLargeException"), "validation"),
    "overloaded": ErrorRow(503, front_end_body("WlmCapacityException"), "overloaded"),
    "rate_limited": ErrorRow(429, front_end_body("TooManyRequestsException"), "overloaded"),
    "unavailable": ErrorRow(503, front_end_body("ServiceUnavailableException"), "overloaded"),
    "cancelled": ErrorRow(503, front_end_body("WlmException"), "generation"),
    "engine_dead": ErrorRow(503, front_end_body("WlmException"), "generation"),
    "server_error": ErrorRow(500, front_end_body("InternalServerException"), "generation"),
}


def error_body(error: ServerError, context: ErrorContext) -> Body:
    """The body of an error, with TGI's field where the call has that shape."""
    row = ERRORS[error.kind]
    body = row.body(error, row.status, context)
    return _with_tgi_fields(body, error) if context.is_tgi else body


def error_reply(error: ServerError, context: ErrorContext) -> Reply:
    """The answer to a call that failed before anything was sent."""
    return json_reply(ERRORS[error.kind].status, error_body(error, context))


def stream_error_body(error: ServerError, context: ErrorContext) -> Body:
    """The last object of a stream that fails: any failure is told as a failed generation, its status is long sent."""
    body = generation_body(error, MODEL_ERROR, context)
    return _with_tgi_fields(body, error) if context.is_tgi else body


def _with_tgi_fields(body: Body, error: ServerError) -> Body:
    """The body with the two fields by which TGI's clients raise; the front end's errors have no `error` of their own."""
    return msgspec.structs.replace(body, error=error.message, error_type=ERRORS[error.kind].error_type)


def _content(status: int) -> Content:
    model_errors = (LmiFailure, LmiShortError, LmiBatchError, LmiStreamFailure)
    return {JSON_MEDIA_TYPE: model_errors if status == MODEL_ERROR else FrontError}


LMI_ERRORS = ErrorFamily({kind: row.status for kind, row in ERRORS.items()}, _content)
