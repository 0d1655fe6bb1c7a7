"""The recorded costs: one small table, `limits.json`, by Python's minor version and by name.

Does: read, compare, write. Does not: measure. Used by the tests and by `record`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PATH = Path(__file__).with_name("limits.json")
MARGIN = 0.15  # growth that is let pass: a small feature may cost a little
FOREIGN_MARGIN = 0.4  # under a Python that nothing was recorded for: other versions compile to other instructions
RECORD = "python -m tests.performance.record"

Table = dict[str, dict[str, float]]


class Limits(NamedTuple):
    """The costs that count under one Python version. `recorded_with`: the version they were recorded with."""

    costs: Mapping[str, float]
    recorded_with: str
    margin: float


def python_version() -> str:
    """The minor version of this Python, as the table names it."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def read_table() -> Table:
    """The whole table; {} if there is none."""
    table: Table = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    return table


def limits_for(table: Table, version: str) -> Limits:
    """What was recorded with `version`, else with the newest version before it, else with the oldest."""
    if version in table:
        return Limits(table[version], version, MARGIN)
    known = sorted(table, key=_as_numbers)
    older = [one for one in known if _as_numbers(one) < _as_numbers(version)]
    chosen = older[-1] if older else known[0]
    return Limits(table[chosen], chosen, FOREIGN_MARGIN)


def complaint(name: str, cost: float, limits: Limits) -> str | None:
    """What is wrong with this cost, on one line; None if it is within its limit."""
    recorded = limits.costs.get(name)
    if recorded is None:
        return f"{name}: {cost:.0f} instructions, and no limit was recorded: {RECORD}"
    if cost <= recorded * (1 + limits.margin):
        return None
    return (
        f"{name}: grew from {recorded:.0f} to {cost:.0f} instructions (+{cost / recorded - 1:.0%}, allowed are "
        f"+{limits.margin:.0%} over Python {limits.recorded_with}); if that is intended, record anew: {RECORD}"
    )


def write_costs(version: str, costs: Mapping[str, float]) -> None:
    """Put the costs of one version into the table in the place of its old ones; other versions stay."""
    table = {**read_table(), version: {name: round(cost, 1) for name, cost in costs.items()}}
    ordered = {one: table[one] for one in sorted(table, key=_as_numbers)}
    PATH.write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
