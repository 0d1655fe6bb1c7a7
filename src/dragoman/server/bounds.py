"""The interval that a number of a request may be in, for errors and for the OpenAPI document.

Does: compare, and describe the allowed values. Does not: know parameters or APIs, which declare their intervals.
Called by the dialects on the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Bounds:
    """The allowed interval of a number; None = unbounded on that side."""

    low: float | None = None
    high: float | None = None
    is_low_open: bool = False
    is_high_open: bool = False
    note: str = ""  # a further remark about the allowed values

    def problem(self, value: float) -> Literal["negative", "low", "high"] | None:
        """The side on which `value` is out, None if it is inside. "negative": "low", where no negative number is allowed."""
        if self.low is not None and (value < self.low or (self.is_low_open and value == self.low)):
            return "negative" if value < 0 <= self.low else "low"
        if self.high is not None and (value > self.high or (self.is_high_open and value == self.high)):
            return "high"
        return None

    def __str__(self) -> str:
        """The allowed values, in words."""
        low = "" if self.low is None else f"greater than {self.low}" if self.is_low_open else f"at least {self.low}"
        high = "" if self.high is None else f"less than {self.high}" if self.is_high_open else f"at most {self.high}"
        if low and high and not (self.is_low_open or self.is_high_open):
            return f"between {self.low} and {self.high}{self.note}"
        return " and ".join(part for part in (low, high) if part) + self.note
