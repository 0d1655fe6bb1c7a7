"""Errors in the three shapes of the OpenAI-shaped dialects: OpenAI's object, OVMS's string, LMI's 424.

Does: one table per shape from error kind to status and body, and the in-band form inside a stream.
Does not: decide which shape a call has. Called by the completions and chat dialects, on the event loop.
Sources: OpenAI API reference, error codes; OVMS v2025.0 HTTP status map; LMI 0.31, inference API schema, error responses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from dragoman.errors import CapacityError, ServerError
from dragoman.server.api import Reply
from dragoman.server.apis.lmi import errors as lmi_errors
from dragoman.server.framing import JSON_MEDIA_TYPE, SSE_DONE, jsonline, sse

ErrorShape = Literal["openai", "ovms", "lmi"]
BodyBuilder = Callable[[ServerError], dict[str, Any]]


class ErrorRow(NamedTuple):
    """How one kind of error leaves: the HTTP status and the JSON body."""

    status: int
    body: BodyBuilder


def _openai(error_type: str, code: str | None) -> BodyBuilder:
    def build(error: ServerError) -> dict[str, Any]:
        return {"error": {"message": error.message, "type": error_type, "param": error.param, "code": code}}

    return build


def _ovms(error: ServerError) -> dict[str, Any]:
    return {"error": error.message}


def _ovms_not_found(error: ServerError) -> dict[str, Any]:
    # OVMS clients look for these two words to tell a missing model from a bad request.
    is_named = "not found" in error.message
    return {"error": error.message if is_named else f"{error.message}: not found"}


def _ovms_capacity(error: ServerError) -> dict[str, Any]:
    """OVMS's sentence with both numbers, where the error has them."""
    if not isinstance(error, CapacityError) or None in (error.num_prompt_tokens, error.max_model_len):
        return _ovms(error)
    needed = f"Number of prompt tokens: {error.num_prompt_tokens}"
    if error.max_tokens is not None and error.param != "prompt":
        needed += f" + max tokens value: {error.max_tokens}"
    return {"error": f"{needed} exceeds model max length: {error.max_model_len}"}


def _lmi_chat(row: lmi_errors.ErrorRow) -> ErrorRow:
    """LMI's conversations tell whatever concerns the model in the short form, bad parameters too."""
    if row.status == lmi_errors.MODEL_ERROR:
        return ErrorRow(row.status, lmi_errors.short_body)
    return ErrorRow(row.status, lambda error: row.body(error, row.status, lmi_errors.ErrorContext()))


_INVALID = "invalid_request_error"

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
    "too_large": ErrorRow(413, _openai(_INVALID, "request_too_large")),
    "overloaded": ErrorRow(429, _openai("rate_limit_error", "server_overloaded")),
    "unavailable": ErrorRow(503, _openai("server_error", "server_unavailable")),
    "timeout": ErrorRow(503, _openai("server_error", "timeout")),
    "cancelled": ErrorRow(503, _openai("server_error", "cancelled")),
    "capacity": ErrorRow(400, _openai(_INVALID, "context_length_exceeded")),
    "engine_failed": ErrorRow(500, _openai("server_error", None)),
    "engine_dead": ErrorRow(503, _openai("server_error", "engine_dead")),
    "hook_error": ErrorRow(500, _openai("server_error", None)),
    "server_error": ErrorRow(500, _openai("server_error", None)),
}

OVMS_ERRORS: Mapping[str, ErrorRow] = {
    "invalid_request": ErrorRow(400, _ovms),
    "invalid_payload": ErrorRow(412, _ovms),
    "invalid_parameter": ErrorRow(400, _ovms),
    "unsupported": ErrorRow(400, _ovms),
    "not_found": ErrorRow(404, _ovms_not_found),
    "conflict": ErrorRow(409, _ovms),
    "no_memory": ErrorRow(507, _ovms),
    "unknown_path": ErrorRow(404, _ovms),
    "wrong_method": ErrorRow(405, _ovms),
    "unauthorized": ErrorRow(401, _ovms),
    "too_large": ErrorRow(413, _ovms),
    "overloaded": ErrorRow(429, _ovms),
    "unavailable": ErrorRow(503, _ovms),
    "timeout": ErrorRow(503, _ovms),
    "cancelled": ErrorRow(503, _ovms),
    "capacity": ErrorRow(400, _ovms_capacity),
    "engine_failed": ErrorRow(500, _ovms),
    "engine_dead": ErrorRow(503, _ovms),
    "hook_error": ErrorRow(500, _ovms),
    "server_error": ErrorRow(500, _ovms),
}

ERROR_TABLES: Mapping[ErrorShape, Mapping[str, ErrorRow]] = {
    "openai": OPENAI_ERRORS,
    "ovms": OVMS_ERRORS,
    "lmi": {kind: _lmi_chat(row) for kind, row in lmi_errors.ERRORS.items()},
}


def error_reply(shape: ErrorShape, error: ServerError) -> Reply:
    """The complete answer for a call that failed before anything was sent."""
    row = ERROR_TABLES[shape][error.kind]
    return Reply(row.status, msgspec.json.encode(row.body(error)), JSON_MEDIA_TYPE)


def stream_error(shape: ErrorShape, error: ServerError, *, is_sse: bool) -> bytes:
    """The last bytes of a stream that failed: the error as one event or line, framed like its neighbours.

    In a stream LMI knows one form only, whatever the status would have been.
    """
    body = lmi_errors.short_body(error) if shape == "lmi" else ERROR_TABLES[shape][error.kind].body(error)
    payload = msgspec.json.encode(body)
    return sse(payload) + SSE_DONE if is_sse else jsonline(payload)
