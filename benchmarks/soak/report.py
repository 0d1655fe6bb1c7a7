"""What a soak came to: checks, counts, memory; as a table and as data.

Does: ask the books, put the answers into words. Does not: load anything. Called when the load has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.soak.books import (
    Books,
    Line,
    Sample,
    client_mismatches,
    log_mismatches,
    metric_mismatches,
    rest_mismatches,
    shown,
)
from benchmarks.soak.memory import SLOPE_REQUESTS, Reading, Slope, comparable, slope

GOAL_MIB = 1.0
_NUMBERS = ("rss", "anonymous")


@dataclass(frozen=True, slots=True)
class SoakReport:
    """What a soak saw. `checks`: what was found wrong, by check. `outcomes`: by kind, `tenant`: of the model that came and
    went, `calls`: of the log, by outcome.
    """

    checks: Mapping[str, list[str]]
    outcomes: Mapping[str, Mapping[str, int]]
    calls: Mapping[str, int]
    tokens: Mapping[str, int]
    tenant: Mapping[str, int]
    readings: Sequence[Reading]

    @property
    def holds(self) -> bool:
        """True if no check found anything."""
        return not any(self.checks.values())

    def slopes(self) -> dict[str, dict[str, Slope | None]]:
        """Over all comparable readings, and over their second half, when what is kept once has been made."""
        readings = comparable(self.readings)
        parts = {"all": readings, "second half": readings[len(readings) // 2 :]}
        return {part: {of: slope(some, of=of) for of in _NUMBERS} for part, some in parts.items()}

    def lines(self) -> Iterator[str]:
        """The table for people."""
        for kind, counts in self.outcomes.items():
            yield f"  {kind:<18}" + "  ".join(f"{end} {count}" for end, count in counts.items())
        yield "  log: " + ", ".join(f"{outcome} {count}" for outcome, count in self.calls.items())
        yield "  tokens: " + ", ".join(f"{kind} {count}" for kind, count in self.tokens.items())
        yield "  guest: " + (", ".join(f"{what} {count}" for what, count in self.tenant.items()) or "none")
        for part, slopes in self.slopes().items():
            sizes = ", ".join(f"{of} {_worded(one)}" for of, one in slopes.items())
            yield f"  MiB per {SLOPE_REQUESTS:,} requests, {part}: {sizes} (goal: below {GOAL_MIB:g})"
        for check, mismatches in self.checks.items():
            yield from shown(check, mismatches)

    def as_json(self) -> dict[str, Any]:
        """All of it but the words."""
        return {
            "holds": self.holds,
            "checks": {check: len(mismatches) for check, mismatches in self.checks.items()},
            "outcomes": self.outcomes,
            "calls": self.calls,
            "tokens": self.tokens,
            "tenant": self.tenant,
            "slope_mib": self.slopes(),
            "readings": [
                [one.num_requests, one.seconds, one.memory.rss, one.memory.anonymous, one.is_settled]
                for one in self.readings
            ],
        }


def _worded(one: Slope | None) -> str:
    return "too few readings" if one is None else f"{one.mib:+.2f} ± {one.error:.2f}"


def settle_accounts(
    books: Books, lines: Sequence[Line], samples: Sequence[Sample], running: Sequence[Mapping[str, Any]]
) -> dict[str, list[str]]:
    """All checks."""
    return {
        **client_mismatches(books),
        **log_mismatches(books, lines),
        **metric_mismatches(lines, samples),
        **rest_mismatches(samples, running),
    }
