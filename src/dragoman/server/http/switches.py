"""Reads a client's switches for one call: `x-dragoman-strict` and `x-dragoman-timings`. On the event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dragoman.errors import InvalidParameter
from dragoman.server.timings import TIMINGS_HEADER

STRICT_HEADER = "x-dragoman-strict"

MAX_SHOWN, MAX_SHOWN_LENGTH = 20, 100  # the names are the client's own

_WORDS = {"1": True, "true": True, "0": False, "false": False}


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
