"""Errors as Cohere tells them. Used on the event loop. Source: Cohere API reference, errors."""

from __future__ import annotations

import msgspec

from dragoman.errors import ServerError
from dragoman.server.api import HttpCall, Reply
from dragoman.server.apis.openai_wire.errors import OPENAI, ErrorShape
from dragoman.server.describe.answers import json_errors
from dragoman.server.error_kinds import statuses

COHERE_PATH = "/v2/rerank"


class CohereError(msgspec.Struct):
    """The body of an error."""

    message: str


COHERE = ErrorShape(statuses(unsupported=422), lambda error: CohereError(error.message))
ERRORS = json_errors(COHERE.statuses, CohereError)


class RerankErrors:
    """Tells what is wrong with calls below the paths that this API owns: Cohere's second version, vLLM's scores."""

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed."""
        return (COHERE if http.path.startswith(COHERE_PATH) else OPENAI).reply(error)
