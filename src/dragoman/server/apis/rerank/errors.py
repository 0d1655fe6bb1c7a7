"""Errors as Cohere tells them, and who tells errors on the paths of reranking and scoring.

Does: status and text of every kind. Does not: know other APIs' errors. Used on the event loop.
Source: Cohere API reference, errors.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dragoman.errors import ServerError
from dragoman.server.api import HttpCall, Reply
from dragoman.server.apis.openai_wire.errors import OPENAI, ErrorRow, ErrorShape
from dragoman.server.describe.answers import json_errors

COHERE_PATH = "/v2/rerank"


class CohereError(msgspec.Struct):
    """The body of an error."""

    message: str


def _cohere(error: ServerError) -> CohereError:
    return CohereError(error.message)


_STATUSES: Mapping[str, int] = {
    "invalid_request": 400,
    "invalid_payload": 400,
    "invalid_parameter": 400,
    "unsupported": 422,
    "not_found": 404,
    "conflict": 409,
    "no_memory": 507,
    "unknown_path": 404,
    "wrong_method": 405,
    "unauthorized": 401,
    "forbidden": 403,
    "too_large": 413,
    "overloaded": 429,
    "rate_limited": 429,
    "unavailable": 503,
    "timeout": 504,
    "cancelled": 503,
    "capacity": 400,
    "engine_failed": 500,
    "engine_dead": 503,
    "hook_error": 500,
    "server_error": 500,
}

COHERE = ErrorShape({kind: ErrorRow(status, _cohere) for kind, status in _STATUSES.items()})
ERRORS = json_errors(_STATUSES, CohereError)


class RerankErrors:
    """Tells what is wrong with calls below the paths that are this API's: Cohere's second version, vLLM's scores."""

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed."""
        return (COHERE if http.path.startswith(COHERE_PATH) else OPENAI).reply(error)
