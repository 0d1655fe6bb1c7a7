"""Reads header fields of calls: accepted types, how long a client waits, and its switches. On the event loop.

Sources: gRPC over HTTP/2, "Timeout"; the client libraries of OpenAI and Anthropic. Their `x-stainless-read-timeout` (Python)
and `x-stainless-timeout` (the others, and Anthropic's Python) are seconds, and bound each read, not the whole stream.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dragoman.errors import InvalidParameter
from dragoman.server.timings import TIMINGS_HEADER

MILLISECONDS, GRPC = "x-request-timeout-ms", "grpc-timeout"
READS = ("x-stainless-read-timeout", "x-stainless-timeout")
DEADLINE_FIELDS = frozenset((MILLISECONDS, GRPC, *READS))

_GRPC_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_GRPC_FORM = re.compile(r"([0-9]{1,8})([HMSmun])")

STRICT_HEADER = "x-dragoman-strict"

MAX_SHOWN, MAX_SHOWN_LENGTH = 20, 100  # the names are the client's own

_WORDS = {"1": True, "true": True, "0": False, "false": False}


def names(field: str, *wanted: str) -> bool:
    """True if the field lists one of `wanted` (lower case), and not with q=0 (RFC 9110, 12.4.2)."""
    for entry in field.split(","):
        named, *parameters = (part.strip() for part in entry.split(";"))
        if named in wanted:
            return not any(part.replace(" ", "").rstrip("0.") == "q=" for part in parameters)
    return False


# --- deadlines --------------------------------------------------------------------------------------------------------


def waits_of(headers: Mapping[str, str]) -> tuple[float | None, float | None, str]:
    """Seconds for the whole answer and for its next byte, and the field that sets the limit. Raises: InvalidParameter."""
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


# --- switches ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Switches:
    """`is_strict`: parameters without effect are errors. `keep_alive_s`: silence until something is sent; 0 = never."""

    is_strict: bool = False
    has_timings: bool = False
    keep_alive_s: float = 0.0

    def for_call(self, headers: Mapping[str, str]) -> Switches:
        """These switches as changed by the call's header fields. Raises: InvalidParameter."""
        strict, timings = _read(headers, STRICT_HEADER), _read(headers, TIMINGS_HEADER)
        return Switches(
            self.is_strict if strict is None else strict,
            self.has_timings if timings is None else timings,
            self.keep_alive_s,
        )


def _read(headers: Mapping[str, str], name: str) -> bool | None:
    text = headers.get(name)
    if text is None:
        return None
    if (value := _WORDS.get(text.strip().lower())) is None:
        raise InvalidParameter(f"{name} must be 1, true, 0 or false, got {text[:40]!r}", param=name)
    return value


def refuse_ignored(names: Sequence[str]) -> None:
    """Raises: InvalidParameter naming the parameters without effect."""
    if not names:
        return
    shown = ", ".join(name[:MAX_SHOWN_LENGTH] for name in names[:MAX_SHOWN])
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    error = InvalidParameter(
        f"these parameters would have no effect, and strict reading refuses that: {shown}{more}",
        param=names[0][:MAX_SHOWN_LENGTH],
    )
    error.names_parameter = False
    raise error
