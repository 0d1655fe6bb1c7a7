"""The findings of the doctor: sections of facts, problems with their remedies, and the report of all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["problem", "warning", "note"]
"""A problem would prevent serving; a warning costs speed or comfort."""

_ORDER: tuple[Level, ...] = ("problem", "warning", "note")
_COLUMN = 11


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    text: str
    mend: str


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the machine. `lines`: for people; `facts`: the same for programs, in bytes, seconds and counts."""

    name: str
    lines: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def in_gb(num_bytes: float) -> str:
    """A size for people, in powers of ten."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes / 1e3:.0f} kB"


def findings_of(sections: Sequence[Section]) -> list[Finding]:
    """All findings, the worst first."""
    found = [finding for section in sections for finding in section.findings]
    return sorted(found, key=lambda finding: _ORDER.index(finding.level))


def prevents_serving(sections: Sequence[Section]) -> bool:
    return any(finding.level == "problem" for finding in findings_of(sections))


def report_text(sections: Sequence[Section]) -> str:
    lines = []
    for section in sections:
        for index, line in enumerate(section.lines):
            lines.append(f"{'' if index else section.name:{_COLUMN}}{line}")
    found = findings_of(sections)
    for finding in found:
        lines += ["", f"{finding.level}: {finding.text}", f"  {finding.mend}"]
    verdict = "a server would not start" if prevents_serving(sections) else "a server would start"
    numbers = [(sum(finding.level == level for finding in found), level) for level in _ORDER]
    counts = [f"{number} {level}{'' if number == 1 else 's'}" for number, level in numbers]
    lines += ["", f"{verdict} ({', '.join(counts)})"]
    return "\n".join(lines) + "\n"


def report_json(sections: Sequence[Section]) -> str:
    """An object with the sections by name, and the findings."""
    report = {
        **{section.name: dict(section.facts) for section in sections},
        "findings": [
            {"level": finding.level, "text": finding.text, "mend": finding.mend} for finding in findings_of(sections)
        ],
        "can_serve": not prevents_serving(sections),
    }
    return json.dumps(report, indent=2, ensure_ascii=False) + "\n"
