"""docs/models.md has a row for each family, with the first paragraph of its docstring."""

from __future__ import annotations

from pathlib import Path

from dragoman.models.architectures import FAMILIES
from dragoman.models.families import find_family

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_every_family_is_described_as_its_docstring_begins() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    for name in FAMILIES:
        family = find_family(name)
        if isinstance(family, type):
            described = " ".join((family.__doc__ or "").split("\n\n")[0].split()).rstrip(".")
            assert described, name
            assert any(f"`{name}`" in row.split("|")[1] and f" | {described} | " in row for row in rows), name
