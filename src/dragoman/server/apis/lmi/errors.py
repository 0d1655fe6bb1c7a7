"""The LMI dialect's errors: one table from kinds to statuses and bodies.

Does: choose status and body of an error, before an answer has begun and inside a stream. Does not: decide whether a call
streams (`lmi`). Called by the LMI dialect and its encoders, on the event loop.
Sources: the LMI schema page v0.31, error responses; the front end's own errors for what never reaches a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dragoman.errors import ServerError
from dragoman.server.api import Reply
from dragoman.server.apis.lmi.encode import to_json
from dragoman.server.framing import JSON_MEDIA_TYPE
from dragoman.server.replies import json_reply

MODEL_ERROR = 424  # what LMI answers for everything that its handlers refuse or fail at


@dataclass(frozen=True, slots=True)
class ErrorContext:
    """Which form the call asked for, and so its error has."""

    is_stream: bool = False
    is_dynamic: bool = False
    is_tgi: bool = False


Body = dict[str, Any]
BodyBuilder = Callable[[ServerError, int, ErrorContext], Body]


def payload_body(error: ServerError, status: int, context: ErrorContext) -> Body:
    """The body of a call whose payload is wrong."""
    if context.is_dynamic:
        return _dynamic_body(error, status)
    return short_body(error)


def short_body(error: ServerError) -> Body:
    """The text and the status of what concerns a model, without the shape of an answer."""
    return {"error": error.message, "code": MODEL_ERROR}


def generation_body(error: ServerError, status: int, context: ErrorContext) -> Body:
    """The body of a bad generation parameter or a failed generation: shaped like an answer that says so."""
    if context.is_dynamic:
        return _dynamic_body(error, status)
    details: Body = {"finish_reason": "error", "generated_tokens": None, "inputs": None}
    if context.is_stream:
        token = {"id": -1, "text": "", "log_prob": -1, "special_token": True}
        head: Body = {"token": token, "generated_text": "", "details": details}
    else:
        head = {"generated_text": "", "details": {**details, "tokens": None}}
    return {**head, "error": error.message, "code": status}


def front_end_body(type_name: str) -> BodyBuilder:
    """A builder of bodies as the front end writes them, before a model was asked."""

    def build(error: ServerError, status: int, context: ErrorContext) -> Body:
        return front_end_error(status, type_name, error.message)

    return build


def front_end_error(status: int, type_name: str, message: str) -> Body:
    """An error as LMI's front end writes it."""
    return {"code": status, "type": type_name, "message": message}


def front_error(status: int, error_type: str, message: str) -> Reply:
    """An error of LMI's front end."""
    return json_reply(status, front_end_error(status, error_type, message))


def bad_request(message: str) -> Reply:
    """A request that LMI's front end does not pass on to a model."""
    return front_error(400, "BadRequestException", message)


def _dynamic_body(error: ServerError, status: int) -> Body:
    return {"code": status, "message": "invoke handler failure", "error": error.message}


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
    "too_large": ErrorRow(413, front_end_body("RequestEntityTooLargeException"), "validation"),
    "overloaded": ErrorRow(503, front_end_body("WlmCapacityException"), "overloaded"),
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
    return Reply(ERRORS[error.kind].status, to_json(error_body(error, context)), JSON_MEDIA_TYPE)


def stream_error_body(error: ServerError, context: ErrorContext) -> Body:
    """The last object of a stream that fails: any failure is told as a failed generation, its status is long sent."""
    body = generation_body(error, MODEL_ERROR, context)
    return _with_tgi_fields(body, error) if context.is_tgi else body


def _with_tgi_fields(body: Body, error: ServerError) -> Body:
    """The body with the two fields by which TGI's clients raise; the front end's errors have no `error` of their own."""
    return {**body, "error": error.message, "error_type": ERRORS[error.kind].error_type}
