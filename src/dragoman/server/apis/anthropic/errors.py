"""Errors in the form of Anthropic's Messages API. On the event loop. Source: Anthropic API reference, errors."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import CapacityError, ServerError, UnsupportedFeature
from dragoman.server.api import ErrorTeller, HttpCall, Reply
from dragoman.server.describe.answers import json_teller
from dragoman.server.error_kinds import statuses

STATUSES = statuses(unavailable=529, cancelled=500, engine_dead=500)
TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",  # the caller may come again
    504: "timeout_error",
    529: "overloaded_error",  # there is no engine at the moment
}
"""`error.type` by status, except for general errors of the client or the server."""


class ThreadsNotOffered(UnsupportedFeature):
    """A conversation that the server is to keep; clients that read why send all of it themselves."""


class ErrorCause(msgspec.Struct):
    """The feature that is not offered, for clients that go on without it."""

    error_code: str
    unsupported: list[str]


class ErrorDetails(msgspec.Struct):
    """An error, for programs and people."""

    type: str
    message: str
    details: ErrorCause | UnsetType = UNSET


class AnthropicError(msgspec.Struct, tag_field="type", tag="error"):
    """The body of an error."""

    error: ErrorDetails
    request_id: str


REQUEST_ID = "request-id"
"""The header by which Anthropic's clients know a request; its value is that of `x-request-id`."""

VERSION = "anthropic-version"
"""The header that Anthropic's clients send with every call, and no others."""


def type_of(kind: str) -> str:
    status = STATUSES[kind]
    return TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def error_body(error: ServerError, request_id: str) -> AnthropicError:
    cause = ErrorCause("thread_unsupported_request", ["thread"]) if isinstance(error, ThreadsNotOffered) else UNSET
    return AnthropicError(ErrorDetails(type_of(error.kind), _message(error), cause), request_id)


class ForEitherClient:
    """Tells errors below a path that clients of Anthropic and of another API call."""

    def __init__(self, owner: ErrorTeller) -> None:
        self._owner = owner

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        teller = ERRORS if VERSION in http.headers else self._owner
        return teller.error_reply(error, http)


def _message(error: ServerError) -> str:
    """The message; clients shorten the conversation by themselves when they read how it begins."""
    if isinstance(error, CapacityError) and error.num_prompt_tokens is not None and error.max_model_len is not None:
        sizes = f"{error.num_prompt_tokens} tokens > {error.max_model_len} maximum"
        return f"prompt is too long: {sizes}. {error.message}"
    return error.message


def request_id_header(http: HttpCall) -> dict[str, str]:
    return {REQUEST_ID: http.request_id}


ERRORS = json_teller(
    STATUSES, AnthropicError, lambda error, http: error_body(error, http.request_id), request_id_header
)
