"""Errors as OpenVINO Model Server tells them: one string.

Does: status and text of every kind. Does not: frame them (`openai_wire.errors` does). Used on the event loop.
Source: OVMS v2025.0, HTTP status map and texts.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dragoman.errors import CapacityError, ServerError, TextOnly
from dragoman.server.apis.openai_wire.errors import ErrorRow, ErrorShape
from dragoman.server.describe.answers import json_errors


class OvmsError(msgspec.Struct):
    """The body of an error."""

    error: str


def _ovms(error: ServerError) -> OvmsError:
    return OvmsError(error.message)


def _ovms_not_found(error: ServerError) -> OvmsError:
    # OVMS clients look for these two words to tell a missing model from a bad request.
    is_named = "not found" in error.message
    return OvmsError(error.message if is_named else f"{error.message}: not found")


def _ovms_capacity(error: ServerError) -> OvmsError:
    """OVMS's sentence with both numbers, where the error has them."""
    if not isinstance(error, CapacityError) or None in (error.num_prompt_tokens, error.max_model_len):
        return _ovms(error)
    needed = f"Number of prompt tokens: {error.num_prompt_tokens}"
    if error.max_tokens is not None and error.param != "prompt":
        needed += f" + max tokens value: {error.max_tokens}"
    return OvmsError(f"{needed} exceeds model max length: {error.max_model_len}")


def _ovms_unsupported(error: ServerError) -> OvmsError:
    is_text_only = isinstance(error, TextOnly)
    return (
        OvmsError("This servable supports only text input, but image_url has been provided")
        if is_text_only
        else _ovms(error)
    )


OVMS_ERRORS: Mapping[str, ErrorRow] = {
    "invalid_request": ErrorRow(400, _ovms),
    "invalid_payload": ErrorRow(412, _ovms),
    "invalid_parameter": ErrorRow(400, _ovms),
    "unsupported": ErrorRow(400, _ovms_unsupported),
    "not_found": ErrorRow(404, _ovms_not_found),
    "conflict": ErrorRow(409, _ovms),
    "no_memory": ErrorRow(507, _ovms),
    "unknown_path": ErrorRow(404, _ovms),
    "wrong_method": ErrorRow(405, _ovms),
    "unauthorized": ErrorRow(401, _ovms),
    "forbidden": ErrorRow(403, _ovms),
    "too_large": ErrorRow(413, _ovms),
    "overloaded": ErrorRow(429, _ovms),
    "rate_limited": ErrorRow(429, _ovms),
    "unavailable": ErrorRow(503, _ovms),
    "timeout": ErrorRow(503, _ovms),
    "cancelled": ErrorRow(503, _ovms),
    "capacity": ErrorRow(400, _ovms_capacity),
    "engine_failed": ErrorRow(500, _ovms),
    "engine_dead": ErrorRow(503, _ovms),
    "hook_error": ErrorRow(500, _ovms),
    "server_error": ErrorRow(500, _ovms),
}

OVMS = ErrorShape(OVMS_ERRORS)
ERRORS = json_errors(OVMS.statuses, OvmsError)
