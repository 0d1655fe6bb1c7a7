"""Errors in llama.cpp's form. On the event loop. Source: llama.cpp, tools/server/README.md, "API errors"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import CapacityError, ServerError
from dragoman.server.describe.answers import json_teller
from dragoman.server.error_kinds import statuses

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
    """An error. `n_prompt_tokens`, `n_ctx`: of a prompt that is too long."""

    code: int
    message: str
    type: ErrorType
    n_prompt_tokens: int | UnsetType = UNSET
    n_ctx: int | UnsetType = UNSET


class LlamaError(msgspec.Struct):
    """The body of an error."""

    error: LlamaErrorDetails


STATUSES = statuses(unsupported=501, overloaded=503)
_TYPES: Mapping[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "unavailable_error",
    501: "not_supported_error",
    503: "unavailable_error",
    507: "unavailable_error",
}


def error_body(error: ServerError) -> LlamaError:
    status = STATUSES[error.kind]
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    details = LlamaErrorDetails(
        status, error.message, "exceed_context_size_error" if error.kind == "capacity" else kind
    )
    if isinstance(error, CapacityError) and error.num_prompt_tokens is not None and error.max_model_len is not None:
        # Clients look for these words, and shorten the prompt.
        details.message = (
            f"the request ({error.num_prompt_tokens} tokens) exceeds the available context size "
            f"({error.max_model_len} tokens): shorten the prompt"
        )
        details.n_prompt_tokens, details.n_ctx = error.num_prompt_tokens, error.max_model_len
    return LlamaError(details)


ERRORS = json_teller(STATUSES, LlamaError, lambda error, http: error_body(error))
