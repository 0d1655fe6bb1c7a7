"""What the front end answers itself, before or instead of a model: whose words it uses, and LMI's own.

Does: say which API owns a path; build complete replies. Does not: know routes or models.
Called by the app, the routes and management, on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.server.api import ErrorTeller, Reply
from dragoman.server.apis.anthropic.errors import AnthropicErrors
from dragoman.server.apis.lmi.errors import front_end_error
from dragoman.server.apis.sagemaker.envelope import SageMakerDialect
from dragoman.server.framing import JSON_MEDIA_TYPE
from dragoman.server.registry import DialectSet

_ANTHROPIC = AnthropicErrors()


def owner(dialects: DialectSet, path: str) -> ErrorTeller:
    """Who answers for `path` where no model does: unknown paths, wrong methods, bad keys, oversized bodies.

    The API whose prefix it is, whether or not there is a route; LMI for all other paths.
    """
    match path.split("/")[1:]:
        case ["v1", "messages", *_]:
            return _ANTHROPIC
        case ["v1", *_] | ["tokenize" | "detokenize" | "tokenizer_info"]:
            return dialects.completions_v1
        case ["v3", *_]:
            return dialects.completions_v3
        case ["api", *_]:
            return dialects.text
        case ["" | "generate" | "generate_stream" | "info"]:
            return dialects.tgi
        case ["endpoints", *_]:
            return SageMakerDialect(dialects.lmi)
        case _:
            return dialects.lmi


def json_reply(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Reply:
    """A JSON answer."""
    return Reply(status, msgspec.json.encode(value), JSON_MEDIA_TYPE, headers or {})


def front_error(status: int, error_type: str, message: str) -> Reply:
    """An error of LMI's front end."""
    return json_reply(status, front_end_error(status, error_type, message))


def bad_request(message: str) -> Reply:
    """A request that LMI's front end does not pass on to a model."""
    return front_error(400, "BadRequestException", message)
