"""The script that checks the wheel: what it finds wrong. `make wheel` runs it whole, which takes a minute and needs pip."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support.scripts import load_script

ROOT = Path(__file__).resolve().parents[1]


check = load_script("scripts/check_wheel.py")


def in_repository() -> set[str]:
    """What the package has here."""
    root = ROOT / "src"
    files = (path for path in (root / "dragoman").rglob("*") if path.is_file())
    found = {str(path.relative_to(root)) for path in files if "__pycache__" not in path.parts}
    return {name for name in found if name not in check.BUILT | check.NOT_BUILT}


def test_the_package_has_what_the_wheel_must_have() -> None:
    assert set(check.REQUIRED) <= in_repository()


def test_a_wheel_of_all_files_has_no_problem() -> None:
    names = [*in_repository(), "dragoman-0.1.0.dist-info/METADATA"]
    assert list(check.content_problems(names, in_repository())) == []


def test_a_file_that_is_lacking_and_one_too_many_are_named() -> None:
    names = [*sorted(in_repository() - {"dragoman/py.typed"}), "tests/test_llm.py"]
    assert list(check.content_problems(names, in_repository())) == [
        "the wheel lacks dragoman/py.typed",
        "the wheel has tests/test_llm.py, which is no file of src/dragoman",
    ]


def test_a_model_that_is_in_no_list_is_missed_all_the_same() -> None:
    names = {name for name in in_repository() if "demo_vision_model" not in name}
    problems = list(check.content_problems(sorted(names), names))
    assert "the wheel lacks dragoman/demo_vision_model/model.safetensors" in problems


def test_the_files_of_a_package_are_those_that_git_would_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src" / "dragoman"
    package.mkdir(parents=True)
    for name in ("kept.py", "new.py", "gone.py", "ignored.pyc"):
        (package / name).touch()
    (tmp_path / ".gitignore").write_text("*.pyc\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "--quiet"], check=True)
    subprocess.run(["git", "add", "src/dragoman/kept.py", "src/dragoman/gone.py"], check=True)
    (package / "gone.py").unlink()
    assert check.kept_files() == {"dragoman/kept.py", "dragoman/new.py"}


def test_a_wheel_has_the_library_where_there_is_a_compiler_and_is_tagged_for_its_machines() -> None:
    def problems(wheel: str, names: set[str], *, has_compiler: bool) -> list[str]:
        return list(check.kernel_problems(wheel, sorted(names), has_compiler=has_compiler))

    here, anywhere = "dragoman-1-py3-none-linux_x86_64.whl", "dragoman-1-py3-none-any.whl"
    assert problems(here, check.BUILT, has_compiler=True) == []
    assert problems(anywhere, check.NOT_BUILT, has_compiler=False) == []
    [lacks] = problems(anywhere, check.NOT_BUILT, has_compiler=True)
    assert lacks.startswith("the wheel lacks the library of kernels")
    told = "the library of kernels"
    assert problems(anywhere, check.BUILT, has_compiler=True) == [
        f"{anywhere} is tagged for all machines, and has {told}"
    ]
    assert problems(here, check.NOT_BUILT, has_compiler=False) == [
        f"{here} is tagged for one kind of machine, and lacks {told}"
    ]


def test_what_is_too_large_is_told_with_both_numbers() -> None:
    assert list(check.size_problem("the wheel", 40_000_000, 40_000_000)) == []
    assert list(check.size_problem("the wheel", 52_400_000, 40_000_000)) == [
        "the wheel has 52 MB, at most 40 are allowed"
    ]


def test_bytecode_and_what_links_lead_to_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_bytes(b"x" * 1000)
    (tmp_path / "a.py").write_bytes(b"x" * 70)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b.so").write_bytes(b"x" * 7)
    (tmp_path / "link").symlink_to(tmp_path / "a.py")
    assert check.installed_bytes(tmp_path) == 77


def test_an_sdist_without_the_changelog_is_told(tmp_path: Path) -> None:
    path = tmp_path / "dragoman-1.tar.gz"
    tops = ["LICENSE", "native/x", "README.md", "Makefile", "constraints.txt", "pyproject.toml", "src/x", "tests/x"]
    with tarfile.open(path, "w:gz") as archive:
        for name in tops:
            archive.addfile(tarfile.TarInfo(f"dragoman-1/{name}"), io.BytesIO())
    assert list(check.sdist_problems(path)) == ["the sdist lacks CHANGELOG.md"]
