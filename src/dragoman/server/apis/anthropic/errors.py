"""Errors as clients of Anthropic's Messages API read them.

Does: status and body of an error, before an answer and inside a stream. Does not: parse or answer messages.
Called by the app, the dialect and the encoder, on the event loop. Source: Anthropic API reference, errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import CapacityError, ServerError, UnsupportedFeature
from dragoman.server.api import ErrorTeller, HttpCall, Reply
from dragoman.server.describe.answers import json_errors
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


class ThreadsNotOffered(UnsupportedFeature):
    """A conversation that the server is to keep; clients that read why send all of it themselves."""


class ErrorCause(msgspec.Struct):
    """What is wrong, for clients that do without it."""

    error_code: str
    unsupported: list[str]


class ErrorDetails(msgspec.Struct):
    """What is wrong, for programs and for people."""

    type: str
    message: str
    details: ErrorCause | UnsetType = UNSET


class AnthropicError(msgspec.Struct):
    """The body of an error."""

    type: Literal["error"]
    error: ErrorDetails
    request_id: str


REQUEST_ID = "request-id"
"""The header by which Anthropic's clients know a request; `x-request-id`, which every answer has, says the same."""

VERSION = "anthropic-version"
"""The header that Anthropic's clients send with every call, and no others."""

ANTHROPIC_ERRORS = json_errors({kind: status for kind, (status, _) in ERRORS.items()}, AnthropicError)
"""The errors as operations list them."""


def error_body(error: ServerError, request_id: str) -> AnthropicError:
    """An error as it is told."""
    cause = ErrorCause("thread_unsupported_request", ["thread"]) if isinstance(error, ThreadsNotOffered) else UNSET
    return AnthropicError("error", ErrorDetails(ERRORS[error.kind][1], _message(error), cause), request_id)


class AnthropicErrors:
    """The errors of Anthropic's Messages API."""

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed."""
        body = error_body(error, http.request_id)
        return json_reply(ERRORS[error.kind][0], body, {REQUEST_ID: http.request_id})


class ForEitherClient:
    """Tells errors below a path that Anthropic's clients call as well as those of the API that owns it."""

    def __init__(self, owner: ErrorTeller) -> None:
        self._owner = owner

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed, in the words of whoever calls."""
        teller = AnthropicErrors() if VERSION in http.headers else self._owner
        return teller.error_reply(error, http)


def _message(error: ServerError) -> str:
    """The message; clients shorten the conversation by themselves when they read how it begins."""
    if isinstance(error, CapacityError) and error.num_prompt_tokens is not None and error.max_model_len is not None:
        sizes = f"{error.num_prompt_tokens} tokens > {error.max_model_len} maximum"
        return f"prompt is too long: {sizes}. {error.message}"
    return error.message
