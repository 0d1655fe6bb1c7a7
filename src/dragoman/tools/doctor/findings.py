"""The findings of the doctor: sections of facts, and problems with their remedies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Level = Literal["problem", "warning", "note"]
"""A problem would prevent serving; a warning costs speed or comfort."""


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


@dataclass(frozen=True, slots=True)
class Places:
    """The files in which Linux describes itself; tests replace them."""

    root: Path = Path("/")

    def text(self, path: str) -> str:
        """The file's text, stripped; "" if it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def number(self, path: str) -> int | None:
        text = self.text(path)
        return int(text) if text.isdecimal() else None

    def names(self, path: str, pattern: str) -> Iterator[str]:
        yield from sorted(entry.name for entry in (self.root / path).glob(pattern))


def in_gb(num_bytes: float) -> str:
    """A size for people, in powers of ten."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes / 1e3:.0f} kB"
