"""The script that audits dependencies: what it finds, and that it does not need a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.scripts import load_script

ROOT = Path(__file__).resolve().parents[1]


audit = load_script("scripts/audit_dependencies.py")


def test_all_that_is_declared_is_pinned() -> None:
    pins, problems = audit.read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    declared = audit.requirements(audit.tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    assert len(declared) > 20
    assert "packaging" in {one.name for one in declared}, "which the script itself imports"
    assert [*problems, *audit.pin_problems(declared, pins)] == []


@pytest.mark.parametrize(
    "line", ["numpy", "numpy>=2", "numpy==2.*", "-e .", "numpy @ https://a.example/x.whl", "--index-url x"]
)
def test_what_is_no_pin_is_told(line: str) -> None:
    _, problems = audit.read_pins(f"# head\n{line}\n")
    assert problems == [f"constraints.txt line 2: {line!r} must have the form NAME==VERSION"]


def test_two_versions_of_a_package_are_told() -> None:
    assert audit.read_pins("a-b==1\nA_b==2\n")[1] == ["constraints.txt line 2: A_b is pinned to two versions"]
    assert audit.read_pins("a-b==1\nA_b==1\n") == ({"a-b": "1"}, [])


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ("numpy>=2.0", ""),
        ("NumPy~=2.4", ""),
        ("numpy>=3", "numpy is pinned to 2.4.6, pyproject.toml asks for >=3"),
        ("scipy", "scipy is declared in pyproject.toml and not pinned"),
        ("numpy @ https://a.example/x.whl", "numpy must come from the package index"),
    ],
)
def test_what_is_declared_and_not_so_pinned_is_told(declared: str, told: str) -> None:
    problems = list(audit.pin_problems([Requirement(declared)], {"numpy": "2.4.6"}))
    assert len(problems) == bool(told)
    assert all(told in problem for problem in problems)


def test_what_is_installed_otherwise_is_told() -> None:
    assert list(audit.installed_problems({"pytest": pytest.__version__, "no-such-package": "1"})) == []
    assert list(audit.installed_problems({"pytest": "0.1"})) == [
        f"pytest {pytest.__version__} is installed, 0.1 is pinned in constraints.txt"
    ]


def test_vulnerabilities_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"id": "GHSA-1", "aliases": ["CVE-1"], "fix_versions": ["2.1"], "description": "bad"}
    harmless, skipped = {"name": "a", "version": "1", "vulns": []}, {"name": "c", "skip_reason": "not found"}
    report = json.dumps({"dependencies": [harmless, {"name": "b", "version": "2", "vulns": [known]}, skipped]})
    assert audit.vulnerabilities(report) == (["b 2: GHSA-1, mended in 2.1"], ["c"])
    monkeypatch.setattr(audit, "IGNORED", {"CVE-1": "not reached"})
    assert audit.vulnerabilities(report) == ([], ["c"])


@pytest.mark.parametrize("text", ["", "[]", "Traceback", "{}"])
def test_no_answer_is_not_taken_for_none_known(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        audit.vulnerabilities(text)


def test_without_a_network_it_says_so_and_does_not_fail(tmp_path: Path) -> None:
    environ = {
        "PATH": "",
        "HOME": str(tmp_path),
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, str(ROOT / "scripts" / "audit_dependencies.py")]
    (tmp_path / "constraints.txt").write_text("pytest==" + pytest.__version__ + "\n", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    result = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stdout
    assert result.stdout.startswith("note: known vulnerabilities were not checked")
    assert result.stdout.count("\n") == 1


PYPROJECT = """
[build-system]
requires = []
[project]
dependencies = ["pytest"]
[project.optional-dependencies]
dev = []
remote = []
"""
