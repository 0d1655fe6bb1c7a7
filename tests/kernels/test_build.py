"""The script that builds the library of kernels: what it leaves in the package where it can, cannot or need not build."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, with a package of its own to build into. It takes no arguments."""
    module = load_script("native/build.py")
    monkeypatch.setattr(module, "PLACE", tmp_path / "kernels")
    monkeypatch.setattr(sys, "argv", ["build.py"])
    return module


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that tells its version, and compiles nothing."""
    path = tmp_path / "c++"
    path.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 1.0 || { echo "error: it fails" >&2; exit 1; }\n')
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    return path


def test_without_a_compiler_an_older_library_goes_and_the_reason_is_kept(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    script.put("libdragoman.so", b"older")
    assert script.main() == 0
    assert contents(script.PLACE) == {"why_not.txt": "built without a C++ compiler"}


def test_a_compiler_that_fails_is_no_failure_of_the_installation_and_its_reason_is_kept(
    script: Any, compiler: Path
) -> None:
    assert script.main() == 0
    [(name, reason)] = contents(script.PLACE).items()
    assert name == "why_not.txt"
    assert reason.startswith("not built: cmake")


def test_sources_that_cannot_be_written_are_no_failure_either(
    script: Any, compiler: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(script, "PLACE", tmp_path / "file" / "kernels")
    assert script.main() == 0
    assert "no kernels of dragoman's own: not built: " in capsys.readouterr().err


def test_a_library_that_is_up_to_date_stays_and_one_of_other_sources_does_not(script: Any, compiler: Path) -> None:
    script.put("libdragoman.so", b"built")
    script.put("built_from.txt", script.built_from(str(compiler)).encode())
    script.put("why_not.txt", b"an older reason")
    assert script.main() == 0
    assert set(contents(script.PLACE)) == {"libdragoman.so", "built_from.txt"}
    script.put("built_from.txt", b"other sources")
    assert script.main() == 0  # it is built anew, which fails here
    assert set(contents(script.PLACE)) == {"why_not.txt"}


def test_the_check_for_arm_says_in_one_line_what_it_lacks(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["build.py", "--check", "arm"])
    assert script.main() == 1
    missing, packages = "aarch64-linux-gnu-g++ and qemu-aarch64-static", "g++-aarch64-linux-gnu, qemu-user-static"
    assert capsys.readouterr().err == f"not checked: {missing} not found (Debian: {packages})\n"
