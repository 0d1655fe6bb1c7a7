"""Errors as Text Embeddings Inference tells them.

Source: TEI's HTTP API (ErrorResponse, ErrorType) from version 1.9 on; before, `Validation` was 413.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from dragoman.errors import InvalidPayload, ServerError
from dragoman.server.api import HttpCall, Reply, json_reply
from dragoman.server.describe.answers import json_errors
from dragoman.server.error_kinds import INVALID, statuses

TeiErrorType = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


class NothingGiven(InvalidPayload):
    """The request has no text; TEI has its own status for that."""


class TeiError(msgspec.Struct):
    """The body of an error."""

    error: str
    error_type: TeiErrorType


STATUSES = statuses(
    **dict.fromkeys((*INVALID, "capacity"), 422),
    **dict.fromkeys(("unsupported", "timeout", "cancelled", "engine_failed", "hook_error"), 424),
)
TYPES: Mapping[int, TeiErrorType] = {
    424: "Backend",
    429: "Overloaded",
    500: "Backend",
    503: "Unhealthy",
    507: "Overloaded",
}
"""The types of errors by status; all others are the client's fault."""
EMPTY_STATUS = 400

ERRORS = json_errors(STATUSES, TeiError)


class TeiErrors:
    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        if isinstance(error, NothingGiven):
            return json_reply(EMPTY_STATUS, TeiError(error.message, "Empty"))
        status = STATUSES[error.kind]
        return json_reply(status, TeiError(error.message, TYPES.get(status, "Validation")))
