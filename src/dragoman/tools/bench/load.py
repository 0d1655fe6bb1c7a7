"""The load on a server: numbers of requests, their times and lengths; and the errors of a benchmark as a whole."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

LoadKind = Literal["concurrency", "rate"]


class BenchError(Exception):
    """The benchmark cannot run; one line for the user."""


class OptionError(BenchError):
    """An option has a wrong value. `option`: its name, such as `prompt_tokens`."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(problem)
        self.option = option


@dataclass(frozen=True, slots=True)
class Lengths:
    """A number of tokens, drawn evenly from `low` to `high`, both included."""

    low: int
    high: int

    def draw(self, dice: random.Random) -> int:
        return dice.randint(self.low, self.high) if self.low < self.high else self.low

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class Load:
    """One point of a sweep: `value` clients that each wait for their answer, or `value` requests a second."""

    kind: LoadKind
    value: float

    def __str__(self) -> str:
        return f"{self.kind} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Extent:
    """The end of a point: after `requests` or `duration_s`, whichever comes first; None = no such limit."""

    requests: int | None = None
    duration_s: float | None = None


def arrivals(rate: float, seed: int | str) -> Iterator[float]:
    """The requests' times in seconds from the start, without end: a Poisson process of `rate` a second."""
    dice, time_s = random.Random(seed), 0.0
    while True:
        time_s += dice.expovariate(rate)
        yield time_s
