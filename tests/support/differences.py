"""What engines lack that clients notice, as docs/scaling.md lists it: the marks `needs` of tests name rows of that table."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
HEADING = "### What clients notice"


def lacking() -> dict[str, frozenset[str]]:
    """The engines that lack it, for each row of the table."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n{HEADING}\n")[1].split("\n#")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|") and not set(line) <= set("|- ")
    ]
    engines = [name.lower() for name in rows[0][2:]]
    found = {}
    for name, _, *cells in rows[1:]:
        assert set(cells) <= {"yes", "no"}, f"{name}: {cells}"
        lack = frozenset(engine for engine, cell in zip(engines, cells, strict=True) if cell == "no")
        found[re.sub("`", "", name)] = lack
    return found
