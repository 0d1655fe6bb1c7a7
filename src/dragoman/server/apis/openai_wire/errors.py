"""Errors in OpenAI's wire format. Called by the dialects, on the event loop. Source: OpenAI API reference, error codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from dragoman.errors import ServerError
from dragoman.server.api import JSON_MEDIA_TYPE, SSE_DONE, HttpCall, Reply, jsonline, sse
from dragoman.server.descriptions import ErrorFamily, statuses

BodyBuilder = Callable[[ServerError], msgspec.Struct]

ErrorType = Literal["invalid_request_error", "rate_limit_error", "server_error"]
ErrorCode = Literal[
    "cancelled",
    "context_length_exceeded",
    "engine_dead",
    "insufficient_permissions",
    "invalid_api_key",
    "invalid_value",
    "method_not_supported",
    "model_not_found",
    "rate_limit_exceeded",
    "request_too_large",
    "server_overloaded",
    "server_unavailable",
    "timeout",
    "unsupported_value",
]


class OpenAiErrorDetails(msgspec.Struct):
    """An error, for people and programs. `param`: the parameter at fault."""

    message: str
    type: ErrorType
    param: str | None
    code: ErrorCode | None


class OpenAiError(msgspec.Struct):
    """The body of an error in OpenAI's own shape."""

    error: OpenAiErrorDetails


@dataclass(frozen=True, slots=True)
class ErrorShape(ErrorFamily):
    """An API's errors, with the body that is made of one, and the body inside a stream (None = the same)."""

    body: BodyBuilder
    in_stream: BodyBuilder | None = None

    def reply(self, error: ServerError) -> Reply:
        return Reply(self.statuses[error.kind], msgspec.json.encode(self.body(error)), JSON_MEDIA_TYPE)

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """Implements `ErrorTeller`."""
        return self.reply(error)

    def last_bytes(self, error: ServerError, *, is_sse: bool) -> bytes:
        """The end of a stream that failed: the error as one event or line, framed like its neighbours."""
        payload = msgspec.json.encode((self.in_stream or self.body)(error))
        return sse(payload) + SSE_DONE if is_sse else jsonline(payload)


def error_shape(
    statuses: Mapping[str, int], kind: Any, body: BodyBuilder, in_stream: BodyBuilder | None = None
) -> ErrorShape:
    """Errors whose body is the Struct `kind`, or one of several."""
    return ErrorShape(statuses, lambda status: {JSON_MEDIA_TYPE: kind}, body, in_stream)


STATUSES = statuses(timeout=503)
CODES: Mapping[str, ErrorCode] = {
    "invalid_parameter": "invalid_value",
    "unsupported": "unsupported_value",
    "not_found": "model_not_found",
    "wrong_method": "method_not_supported",
    "unauthorized": "invalid_api_key",
    "forbidden": "insufficient_permissions",
    "too_large": "request_too_large",
    "overloaded": "server_overloaded",
    "rate_limited": "rate_limit_exceeded",
    "unavailable": "server_unavailable",
    "timeout": "timeout",
    "cancelled": "cancelled",
    "capacity": "context_length_exceeded",
    "engine_dead": "engine_dead",
}


_KEPT = ("response_id", "file_id", "batch_id")  # where one is not found, there is no code: it is for models
_NAMES = {"num_beams": "best_of"}  # what engines call otherwise


def openai_body(error: ServerError) -> OpenAiError:
    status = STATUSES[error.kind]
    kind: ErrorType = "server_error" if status >= 500 else "invalid_request_error"
    kind = "rate_limit_error" if status == 429 else kind
    param = None if error.param is None else _NAMES.get(error.param, error.param)
    code = None if error.kind == "not_found" and error.param in _KEPT else CODES.get(error.kind)
    return OpenAiError(OpenAiErrorDetails(error.message, kind, param, code))


ERRORS = error_shape(STATUSES, OpenAiError, openai_body)
