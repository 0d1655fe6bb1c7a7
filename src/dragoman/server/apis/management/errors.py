"""Errors of what only operators ask: `/debug`, `/cancel`, metrics.

Does: status and body of an error. Does not: answer anything else. Called by the app, on the event loop.
"""

from __future__ import annotations

import msgspec

from dragoman.errors import ServerError
from dragoman.server.api import HttpCall, Reply, json_reply
from dragoman.server.describe.answers import json_errors
from dragoman.server.error_kinds import statuses

STATUSES = statuses(overloaded=503, cancelled=500, engine_dead=500)


class Failure(msgspec.Struct):
    """The body of an error."""

    error: str


ERRORS = json_errors(STATUSES, Failure)


class PlainErrors:
    """The errors of what only operators ask."""

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed."""
        return json_reply(STATUSES[error.kind], Failure(error.message))
