"""Parameters without effect in bodies of vLLM's operations that rank, score, classify or pool, for their descriptions."""

from __future__ import annotations

from collections.abc import Mapping

IGNORED: Mapping[str, str] = {
    "user": "nothing is tracked per user",
    "priority": "texts are computed in the order in which they come",
}
