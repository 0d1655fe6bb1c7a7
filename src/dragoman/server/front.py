"""Answers of the front end itself: plain JSON, and errors in the shape of LMI's front end.

Does: build complete replies. Does not: know routes or dialects. Called by the app, the routes and management, on the event
loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.server.dialects.base import Reply
from dragoman.server.framing import JSON_MEDIA_TYPE


def json_reply(status: int, value: Any) -> Reply:
    """A JSON answer."""
    return Reply(status, msgspec.json.encode(value), JSON_MEDIA_TYPE)


def front_error(status: int, error_type: str, message: str, headers: Mapping[str, str] | None = None) -> Reply:
    """An error of the front end itself, in the shape of LMI's: `{"code", "type", "message"}`, indented."""
    body = {"code": status, "type": error_type, "message": message}
    return Reply(status, msgspec.json.format(msgspec.json.encode(body)) + b"\n", JSON_MEDIA_TYPE, headers or {})


def bad_request(message: str) -> Reply:
    """A request that the front end does not pass on to a model."""
    return front_error(400, "BadRequestException", message)
