"""Errors of the APIs that speak OpenAI's wire format: the table of OpenAI's own, and what a table is.

Does: one row per kind of error, the complete answer, the in-band form inside a stream.
Does not: decide which shape a call has. Called by the completions and chat dialects, on the event loop.
Source: OpenAI API reference, error codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from dragoman.errors import ServerError
from dragoman.server.api import Reply
from dragoman.server.describe.answers import json_errors
from dragoman.server.http.framing import JSON_MEDIA_TYPE, SSE_DONE, jsonline, sse

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
    """What is wrong, for people and for programs. `param`: the parameter at fault."""

    message: str
    type: ErrorType
    param: str | None
    code: ErrorCode | None


class OpenAiError(msgspec.Struct):
    """The body of an error in OpenAI's own shape."""

    error: OpenAiErrorDetails


class ErrorRow(NamedTuple):
    """How one kind of error leaves: the HTTP status and the JSON body."""

    status: int
    body: BodyBuilder


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How an API tells errors: a row for every kind. `in_stream`: the body inside a stream, None = the row's."""

    rows: Mapping[str, ErrorRow]
    in_stream: BodyBuilder | None = None

    @property
    def statuses(self) -> dict[str, int]:
        """The status of every kind."""
        return {kind: row.status for kind, row in self.rows.items()}

    def reply(self, error: ServerError) -> Reply:
        """The complete answer for a call that failed before anything was sent."""
        row = self.rows[error.kind]
        return Reply(row.status, msgspec.json.encode(row.body(error)), JSON_MEDIA_TYPE)

    def last_bytes(self, error: ServerError, *, is_sse: bool) -> bytes:
        """The end of a stream that failed: the error as one event or line, framed like its neighbours."""
        build = self.in_stream or self.rows[error.kind].body
        payload = msgspec.json.encode(build(error))
        return sse(payload) + SSE_DONE if is_sse else jsonline(payload)


def _openai(error_type: ErrorType, code: ErrorCode | None) -> BodyBuilder:
    def build(error: ServerError) -> OpenAiError:
        return OpenAiError(OpenAiErrorDetails(error.message, error_type, error.param, code))

    return build


_INVALID: ErrorType = "invalid_request_error"

OPENAI_ERRORS: Mapping[str, ErrorRow] = {
    "invalid_request": ErrorRow(400, _openai(_INVALID, None)),
    "invalid_payload": ErrorRow(400, _openai(_INVALID, None)),
    "invalid_parameter": ErrorRow(400, _openai(_INVALID, "invalid_value")),
    "unsupported": ErrorRow(400, _openai(_INVALID, "unsupported_value")),
    "not_found": ErrorRow(404, _openai(_INVALID, "model_not_found")),
    "conflict": ErrorRow(409, _openai(_INVALID, None)),
    "no_memory": ErrorRow(507, _openai("server_error", None)),
    "unknown_path": ErrorRow(404, _openai(_INVALID, None)),
    "wrong_method": ErrorRow(405, _openai(_INVALID, "method_not_supported")),
    "unauthorized": ErrorRow(401, _openai(_INVALID, "invalid_api_key")),
    "forbidden": ErrorRow(403, _openai(_INVALID, "insufficient_permissions")),
    "too_large": ErrorRow(413, _openai(_INVALID, "request_too_large")),
    "overloaded": ErrorRow(429, _openai("rate_limit_error", "server_overloaded")),
    "rate_limited": ErrorRow(429, _openai("rate_limit_error", "rate_limit_exceeded")),
    "unavailable": ErrorRow(503, _openai("server_error", "server_unavailable")),
    "timeout": ErrorRow(503, _openai("server_error", "timeout")),
    "cancelled": ErrorRow(503, _openai("server_error", "cancelled")),
    "capacity": ErrorRow(400, _openai(_INVALID, "context_length_exceeded")),
    "engine_failed": ErrorRow(500, _openai("server_error", None)),
    "engine_dead": ErrorRow(503, _openai("server_error", "engine_dead")),
    "hook_error": ErrorRow(500, _openai("server_error", None)),
    "server_error": ErrorRow(500, _openai("server_error", None)),
}

OPENAI = ErrorShape(OPENAI_ERRORS)
ERRORS = json_errors(OPENAI.statuses, OpenAiError)
