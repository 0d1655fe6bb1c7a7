"""What a self-test found.

Does: hold it, print it as a table or as JSON. Does not: test. Used by the checks and by the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Verdict = Literal["ok", "off", "skipped"]


class Check(msgspec.Struct, frozen=True):
    """One check. `found` and `allowed` in words; `why`: what is off, or why it was skipped, else ""."""

    name: str
    verdict: Verdict
    found: str = ""
    allowed: str = ""
    why: str = ""


class SelfTest(msgspec.Struct, frozen=True):
    """All checks of a model. `seconds`: that they took, loading left out."""

    model: str
    stored_as: str
    seconds: float
    checks: list[Check]

    @property
    def is_off(self) -> bool:
        """Whether any check has found something."""
        return any(check.verdict == "off" for check in self.checks)


def report_json(found: SelfTest) -> str:
    """The findings for programs."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


def report_text(found: SelfTest) -> str:
    """The findings for people: a line for each check."""
    lines = [f"{found.model}, {found.stored_as}: {len(found.checks)} checks in {found.seconds:.1f} s", ""]
    rows = [("check", "", "found", "allowed"), *((c.name, c.verdict, c.found, c.allowed) for c in found.checks)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        lines.append("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    notes = [f"{check.name}: {check.why}" for check in found.checks if check.why]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n" + _last(found.checks)


def _last(checks: Sequence[Check]) -> str:
    off = [check.name for check in checks if check.verdict == "off"]
    return f"\noff: {', '.join(off)}\n" if off else "\nnothing is off\n"
