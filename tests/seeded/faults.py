"""The table of faults: what each puts where, and which tests to run first.

Does: read faults.toml. Does not: put faults in or run tests; `python -m tests.seeded` does.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

PLACE = Path("src/dragoman")


@dataclass(frozen=True, slots=True)
class Fault:
    """A text of a source file and what stands in its place. `tests`: paths, those most likely to find it first."""

    name: str
    file: str
    old: str
    new: str
    tests: str

    def occurrences(self, root: Path) -> int:
        """How often `old` stands in the file below `root`; 1 is right, 0 also if there is no such file."""
        path = root / PLACE / self.file
        return path.read_text(encoding="utf-8").count(self.old) if path.exists() else 0


def read_faults() -> list[Fault]:
    """All faults. Raises: OSError, TypeError if the table has another form."""
    table = tomllib.loads(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8"))
    return [Fault(**row) for row in table["fault"]]
