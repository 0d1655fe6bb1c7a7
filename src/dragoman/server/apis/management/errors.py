"""Errors of what only operators ask: `/debug`, `/cancel`, metrics.

Does: status and body of an error. Does not: answer anything else. Called by the app, on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dragoman.errors import ServerError
from dragoman.server.api import HttpCall, Reply
from dragoman.server.describe.answers import json_errors
from dragoman.server.http.replies import json_reply

STATUSES: Mapping[str, int] = {
    **dict.fromkeys(("invalid_request", "invalid_payload", "invalid_parameter", "unsupported", "capacity"), 400),
    "unauthorized": 401,
    "forbidden": 403,
    **dict.fromkeys(("not_found", "unknown_path"), 404),
    "wrong_method": 405,
    "conflict": 409,
    "too_large": 413,
    **dict.fromkeys(("cancelled", "engine_failed", "engine_dead", "hook_error", "server_error"), 500),
    **dict.fromkeys(("overloaded", "unavailable"), 503),
    "rate_limited": 429,
    "timeout": 504,
    "no_memory": 507,
}


class Failure(msgspec.Struct):
    """The body of an error."""

    error: str


ERRORS = json_errors(STATUSES, Failure)


class PlainErrors:
    """The errors of what only operators ask."""

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed."""
        return json_reply(STATUSES[error.kind], Failure(error.message))
