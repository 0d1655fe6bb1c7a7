"""Parameters without effect in bodies of vLLM's operations that rank, score, classify or pool.

Does: name them, find them in a body. Does not: read any others. Used on the event loop, and when the document is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.server.apis.openai_wire.fields import unknown_names

IGNORED: Mapping[str, str] = {
    "user": "nothing is tracked per user",
    "priority": "texts are computed in the order in which they come",
}
"""Parameters that are accepted, and why they have no effect."""


def idle_names(raw: Mapping[str, Any], kind: type[msgspec.Struct]) -> list[str]:
    """Names in a body that have no effect."""
    return [name for name in raw if name in IGNORED] + list(unknown_names(raw, kind))
