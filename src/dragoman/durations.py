"""Reads durations as people and clients write them: `10m`, `1h30m`, `2.5s`, or a number of seconds.

Source: Go's time.ParseDuration, which Ollama's clients write for.
"""

from __future__ import annotations

import re

ALLOWED = "a number of seconds, or a duration like 10m or 1h30m"

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_FORM = re.compile(rf"[-+]?(?:(?:{_PART.pattern})+|\d+(?:\.\d+)?)", re.ASCII)


def seconds_of(text: str) -> float:
    """The seconds of a duration, which may be negative. Raises: ValueError for another form."""
    if _FORM.fullmatch(text) is None:
        raise ValueError(text)
    sign, bare = (-1.0 if text.startswith("-") else 1.0), text.lstrip("+-")
    parts = _PART.findall(bare)
    return sign * (sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else float(bare))
