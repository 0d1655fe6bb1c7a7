"""What was counted of Python functions: plain data, which travels between processes.

Does: keep and add up. Does not: count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any


@dataclass(slots=True)
class Tally:
    """What was counted of one function. A coroutine that is resumed counts as called again."""

    num_instructions: int = 0
    num_calls: int = 0


TallyOf = Callable[[CodeType], Tally | None]
"""A function's code -> where it is to be counted; None if it is not to be."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a counter has counted of each function, by `file:line name`."""

    tallies: Mapping[str, Tally]

    @property
    def total(self) -> int:
        """Instructions of all functions."""
        return sum([tally.num_instructions for tally in self.tallies.values()])

    def num_calls(self, function: Callable[..., Any]) -> int:
        """How often a Python function was called."""
        tally = self.tallies.get(place_of(function.__code__))
        return tally.num_calls if tally else 0


def place_of(code: CodeType) -> str:
    """The function's name in Counts."""
    return f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}"
