"""The size rules: what breaks one is named, the limits themselves are allowed."""

from __future__ import annotations

from pathlib import Path

from tests.performance.sizes import all_violations

TOO_LARGE = {
    "x = 1\n" * 601: "601 lines, at most 600 are allowed",
    "def long() -> None:\n" + "    x = 1\n" * 60: "1: long has 61 lines, at most 60 are allowed",
    "async def wide(a, b, c, d, e, f, *, g, h) -> None: ...\n": "1: wide has 8 arguments, at most 7 are allowed",
}


def test_each_excess_is_named_once(tmp_path: Path) -> None:
    for source, complaint in TOO_LARGE.items():
        (tmp_path / "module.py").write_text(source, encoding="utf-8")
        (line,) = all_violations([tmp_path])
        assert line.endswith(complaint)


def test_the_limits_themselves_are_allowed(tmp_path: Path) -> None:
    function = "def full(self, a, b, c, d, e, f, g) -> None:\n" + "    x = 1\n" * 59
    (tmp_path / "module.py").write_text(function + "x = 1\n" * 540, encoding="utf-8")
    assert list(all_violations([tmp_path])) == []
