"""Errors as OpenVINO Model Server tells them: one string. Source: OVMS v2025.0, HTTP status map and texts."""

from __future__ import annotations

import msgspec

from dragoman.errors import CapacityError, ServerError, TextOnly
from dragoman.server.apis.openai_wire.errors import ErrorShape
from dragoman.server.describe.answers import json_errors
from dragoman.server.error_kinds import statuses


class OvmsError(msgspec.Struct):
    """The body of an error."""

    error: str


def _text(error: ServerError) -> str:
    """OVMS's own words where its clients look for them."""
    if error.kind == "not_found" and "not found" not in error.message:
        return f"{error.message}: not found"  # these two words tell a missing model from a bad request
    if isinstance(error, TextOnly):
        return "This servable supports only text input, but image_url has been provided"
    if not isinstance(error, CapacityError) or None in (error.num_prompt_tokens, error.max_model_len):
        return error.message
    needed = f"Number of prompt tokens: {error.num_prompt_tokens}"
    if error.max_tokens is not None and error.param != "prompt":
        needed += f" + max tokens value: {error.max_tokens}"
    return f"{needed} exceeds model max length: {error.max_model_len}"


OVMS = ErrorShape(statuses(invalid_payload=412, timeout=503), lambda error: OvmsError(_text(error)))
ERRORS = json_errors(OVMS.statuses, OvmsError)
