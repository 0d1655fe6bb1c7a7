"""The size rules of the code, and the script that checks them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def check(*paths: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "check_sizes.py"), *map(str, paths)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_modules_and_functions_keep_to_the_size_rules() -> None:
    result = check()
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("x = 1\n" * 601, "601 lines, at most 600 are allowed"),
        ("def long() -> None:\n" + "    x = 1\n" * 60, "1: long has 61 lines, at most 60 are allowed"),
        ("async def wide(a, b, c, d, e, f, *, g, h) -> None: ...\n", "1: wide has 8 arguments, at most 7 are allowed"),
    ],
    ids=["module", "function", "arguments"],
)
def test_too_much_of_anything_is_a_violation(source: str, complaint: str, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(source, encoding="utf-8")
    result = check(tmp_path)
    assert result.returncode == 1
    assert result.stdout.endswith(complaint + "\n")
    assert result.stdout.count("\n") == 1


def test_the_limits_themselves_are_allowed(tmp_path: Path) -> None:
    function = "def full(self, a, b, c, d, e, f, g) -> None:\n" + "    x = 1\n" * 59
    (tmp_path / "module.py").write_text(function + "x = 1\n" * 540, encoding="utf-8")
    assert check(tmp_path).returncode == 0
