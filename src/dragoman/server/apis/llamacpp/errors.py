"""Errors as llama.cpp's server tells them: a code, a message, a type, and the sizes where a prompt is too long.

Does: status and body of every kind. Does not: frame streams (the encoder does). Used on the event loop.
Source: llama.cpp, tools/server/README.md, "API errors".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import CapacityError, ServerError
from dragoman.server.api import HttpCall, Reply
from dragoman.server.describe.answers import json_errors
from dragoman.server.http.replies import json_reply

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "not_supported_error",
    "unavailable_error",
    "exceed_context_size_error",
    "server_error",
]


class LlamaErrorDetails(msgspec.Struct):
    """What is wrong. `n_prompt_tokens`, `n_ctx`: of a prompt that is too long."""

    code: int
    message: str
    type: ErrorType
    n_prompt_tokens: int | UnsetType = UNSET
    n_ctx: int | UnsetType = UNSET


class LlamaError(msgspec.Struct):
    """The body of an error."""

    error: LlamaErrorDetails


class Row(NamedTuple):
    """How one kind of error is answered."""

    status: int
    type: ErrorType


_INVALID = Row(400, "invalid_request_error")
_FAILED = Row(500, "server_error")
_UNAVAILABLE = Row(503, "unavailable_error")

ROWS: Mapping[str, Row] = {
    "invalid_request": _INVALID,
    "invalid_payload": _INVALID,
    "invalid_parameter": _INVALID,
    "unsupported": Row(501, "not_supported_error"),
    "capacity": Row(400, "exceed_context_size_error"),
    "not_found": Row(404, "not_found_error"),
    "unknown_path": Row(404, "not_found_error"),
    "wrong_method": Row(405, "invalid_request_error"),
    "unauthorized": Row(401, "authentication_error"),
    "forbidden": Row(403, "permission_error"),
    "conflict": Row(409, "invalid_request_error"),
    "too_large": Row(413, "invalid_request_error"),
    "no_memory": Row(507, "unavailable_error"),
    "overloaded": _UNAVAILABLE,
    "unavailable": _UNAVAILABLE,
    "rate_limited": Row(429, "unavailable_error"),
    "timeout": Row(504, "server_error"),
    "cancelled": _UNAVAILABLE,
    "engine_failed": _FAILED,
    "engine_dead": _UNAVAILABLE,
    "hook_error": _FAILED,
    "server_error": _FAILED,
}

ERRORS = json_errors({kind: row.status for kind, row in ROWS.items()}, LlamaError)


class LlamaErrors:
    """The errors of every operation."""

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed."""
        return json_reply(ROWS[error.kind].status, error_body(error))


def error_body(error: ServerError) -> LlamaError:
    """The object of an error, as a body or in a stream."""
    row = ROWS[error.kind]
    details = LlamaErrorDetails(row.status, error.message, row.type)
    if isinstance(error, CapacityError) and error.num_prompt_tokens is not None and error.max_model_len is not None:
        # Clients look for these words, and shorten the prompt.
        details.message = (
            f"the request ({error.num_prompt_tokens} tokens) exceeds the available context size "
            f"({error.max_model_len} tokens): shorten the prompt"
        )
        details.n_prompt_tokens, details.n_ctx = error.num_prompt_tokens, error.max_model_len
    return LlamaError(details)
