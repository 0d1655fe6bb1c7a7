"""Errors as clients of Anthropic's Messages API read them, for the paths that belong to that API.

Does: status and body of an error. Does not: parse or answer messages. Called by the app, on the event loop.
Source: Anthropic API reference, errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from dragoman.errors import ServerError
from dragoman.server.api import HttpCall, Reply
from dragoman.server.http.replies import json_reply

_INVALID = (400, "invalid_request_error")
_FAILED = (500, "api_error")
_OVERLOADED = (529, "overloaded_error")  # there is no engine at the moment
_FULL = (429, "rate_limit_error")  # the caller may come again

ERRORS: Mapping[str, tuple[int, str]] = {
    "invalid_request": _INVALID,
    "invalid_payload": _INVALID,
    "invalid_parameter": _INVALID,
    "unsupported": _INVALID,
    "capacity": _INVALID,
    "not_found": (404, "not_found_error"),
    "conflict": (409, "invalid_request_error"),
    "no_memory": (507, "api_error"),
    "unknown_path": (404, "not_found_error"),
    "wrong_method": (405, "invalid_request_error"),
    "unauthorized": (401, "authentication_error"),
    "forbidden": (403, "permission_error"),
    "too_large": (413, "request_too_large"),
    "overloaded": _FULL,
    "unavailable": _OVERLOADED,
    "rate_limited": _FULL,
    "timeout": (504, "timeout_error"),
    "cancelled": _FAILED,
    "engine_failed": _FAILED,
    "engine_dead": _FAILED,
    "hook_error": _FAILED,
    "server_error": _FAILED,
}
"""Status and `error.type` of every kind of error."""


class ErrorDetails(msgspec.Struct):
    """What is wrong, for programs and for people."""

    type: str
    message: str


class AnthropicError(msgspec.Struct):
    """The body of an error."""

    type: Literal["error"]
    error: ErrorDetails
    request_id: str


class AnthropicErrors:
    """The errors of Anthropic's Messages API."""

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed."""
        status, error_type = ERRORS[error.kind]
        return json_reply(status, AnthropicError("error", ErrorDetails(error_type, error.message), http.request_id))
