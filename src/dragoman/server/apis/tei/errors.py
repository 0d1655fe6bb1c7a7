"""Errors as Text Embeddings Inference tells them.

Does: status, body and type of every kind. Does not: frame streams, there are none. Used on the event loop.
Source: TEI's HTTP API (ErrorResponse, ErrorType) from version 1.9 on; before, `Validation` was 413.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from dragoman.errors import InvalidPayload, ServerError
from dragoman.server.api import HttpCall, Reply
from dragoman.server.describe.answers import json_errors
from dragoman.server.http.replies import json_reply

TeiErrorType = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


class NothingGiven(InvalidPayload):
    """There is no text in the request, which TEI has a word of its own for."""


class TeiError(msgspec.Struct):
    """The body of an error."""

    error: str
    error_type: TeiErrorType


class TeiRow(NamedTuple):
    """How one kind of error is answered."""

    status: int
    error_type: TeiErrorType


_VALIDATION = TeiRow(422, "Validation")
_BACKEND = TeiRow(424, "Backend")
_OVERLOADED = TeiRow(429, "Overloaded")
_UNHEALTHY = TeiRow(503, "Unhealthy")
_EMPTY = TeiRow(400, "Empty")

ROWS: Mapping[str, TeiRow] = {
    "invalid_request": _VALIDATION,
    "invalid_payload": _VALIDATION,
    "invalid_parameter": _VALIDATION,
    "unsupported": _BACKEND,
    "capacity": _VALIDATION,
    "not_found": TeiRow(404, "Validation"),
    "conflict": TeiRow(409, "Validation"),
    "no_memory": TeiRow(507, "Overloaded"),
    "unknown_path": TeiRow(404, "Validation"),
    "wrong_method": TeiRow(405, "Validation"),
    "unauthorized": TeiRow(401, "Validation"),
    "forbidden": TeiRow(403, "Validation"),
    "too_large": TeiRow(413, "Validation"),
    "overloaded": _OVERLOADED,
    "rate_limited": _OVERLOADED,
    "unavailable": _UNHEALTHY,
    "timeout": _BACKEND,
    "cancelled": _BACKEND,
    "engine_failed": _BACKEND,
    "engine_dead": _UNHEALTHY,
    "hook_error": _BACKEND,
    "server_error": TeiRow(500, "Backend"),
}

STATUSES: Mapping[str, int] = {kind: row.status for kind, row in ROWS.items()}
ERRORS = json_errors(STATUSES, TeiError)


class TeiErrors:
    """The errors of every operation."""

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed."""
        row = _EMPTY if isinstance(error, NothingGiven) else ROWS[error.kind]
        return json_reply(row.status, TeiError(error.message, row.error_type))
