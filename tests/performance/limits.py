"""The recorded costs: one small table, `limits.json`, by Python's minor version and by name.

Does: read, compare, write. Does not: measure. Used by the tests and by `record`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

PATH = Path(__file__).with_name("limits.json")
MARGIN = 0.15  # growth that is let pass: a small feature may cost a little
RECORD = "make costs"  # for the Python it is run with: versions compile to different instructions

Table = dict[str, dict[str, float]]


def python_version() -> str:
    """The minor version of this Python, as the table names it."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def read_table() -> Table:
    """The whole table; {} if there is none."""
    table: Table = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    return table


def complaint(name: str, cost: float, limits: Mapping[str, float]) -> str | None:
    """One line if this cost exceeds its limit in `limits`, those of this Python; else None."""
    recorded = limits.get(name)
    if recorded is None:
        return f"{name}: {cost:.0f} instructions, and no limit was recorded: {RECORD}"
    if cost <= recorded * (1 + MARGIN):
        return None
    return (
        f"{name}: grew from {recorded:.0f} to {cost:.0f} instructions (+{cost / recorded - 1:.0%}, allowed are "
        f"+{MARGIN:.0%}); if that is intended, record anew: {RECORD}"
    )


def write_costs(version: str, costs: Mapping[str, float]) -> None:
    """Put the costs of one version into the table in the place of its old ones; other versions stay."""
    table = {**read_table(), version: {name: round(cost, 1) for name, cost in costs.items()}}
    ordered = {one: table[one] for one in sorted(table, key=_as_numbers)}
    PATH.write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
