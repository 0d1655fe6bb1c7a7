"""Reads from header fields how long a client waits for its answer. Called by the endpoints, on the event loop.

Sources: gRPC over HTTP/2, "Timeout"; the client libraries of OpenAI and Anthropic. Their `x-stainless-read-timeout`
(Python) and `x-stainless-timeout` (the others, and Anthropic's Python) are seconds, and bound each read, not the whole
stream.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from dragoman.errors import InvalidParameter

MILLISECONDS, GRPC = "x-request-timeout-ms", "grpc-timeout"
READS = ("x-stainless-read-timeout", "x-stainless-timeout")
FIELDS = frozenset((MILLISECONDS, GRPC, *READS))

_GRPC_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_GRPC_FORM = re.compile(r"([0-9]{1,8})([HMSmun])")


def waits_of(headers: Mapping[str, str]) -> tuple[float | None, float | None, str]:
    """Seconds for the whole answer, seconds for its next byte, and the header field that sets the limit. Raises:
    InvalidParameter.
    """
    timeout_s = _timeout_of(headers)
    patience_s, name = _patience_of(headers)
    if timeout_s is not None:
        name = MILLISECONDS if MILLISECONDS in headers else GRPC
    return timeout_s, patience_s, name


def _timeout_of(headers: Mapping[str, str]) -> float | None:
    if (text := headers.get(MILLISECONDS)) is not None:
        if not text.isascii() or not text.isdigit() or int(text[:16]) < 1:
            raise InvalidParameter(
                f"{MILLISECONDS} must be a whole number of milliseconds, at least 1, got {text[:40]!r}",
                param=MILLISECONDS,
            )
        return int(text[:16]) / 1000
    if (text := headers.get(GRPC)) is not None:
        match = _GRPC_FORM.fullmatch(text)
        if match is None or not int(match[1]):
            raise InvalidParameter(
                f"{GRPC} must be up to 8 digits and one of H, M, S, m, u, n, got {text[:40]!r}", param=GRPC
            )
        return int(match[1]) * _GRPC_UNITS[match[2]]
    return None


def _patience_of(headers: Mapping[str, str]) -> tuple[float | None, str]:
    """Seconds that the client's library waits for the next byte, and its header field."""
    for name in READS:
        if name not in headers:
            continue
        try:
            seconds = float(headers[name])
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds > 0:
            return seconds, name
    return None, ""
