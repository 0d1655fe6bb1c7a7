"""Complete answers that need no dialect.

Does: JSON bodies. Does not: know APIs or routes. Used by the app, the endpoints and the APIs, on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.server.api import Reply
from dragoman.server.http.framing import JSON_MEDIA_TYPE


def json_reply(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Reply:
    """A JSON answer."""
    return Reply(status, msgspec.json.encode(value), JSON_MEDIA_TYPE, headers or {})
