"""Unfinished files lie apart, one process never takes another's, and what a killed one leaves is removed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.files.unfinished import PREFIX, scratch_directory

# Makes one, writes half a file into it, and waits to be killed.
WORKER = """
import sys
from pathlib import Path
from dragoman.files.unfinished import scratch_directory
with scratch_directory(Path(sys.argv[1])) as work:
    (work / "half").write_bytes(bytes(1000))
    print(work, flush=True)
    sys.stdin.read()
"""


def left(parent: Path) -> list[Path]:
    return sorted(parent.glob(f"{PREFIX}*"))


def worker(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=30)


def test_it_is_empty_and_gone_at_the_end(tmp_path: Path) -> None:
    with scratch_directory(tmp_path / "cache") as work:
        assert (list(work.iterdir()), work.parent) == ([], tmp_path / "cache")
        (work / "file").touch()
    assert list((tmp_path / "cache").iterdir()) == []


def test_it_is_gone_after_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), scratch_directory(tmp_path):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    process, work = worker(tmp_path)
    process.kill()
    end(process)
    assert left(tmp_path) == [work]
    with scratch_directory(tmp_path) as mine:
        assert left(tmp_path) == [mine]


def test_what_a_living_process_has_stays(tmp_path: Path) -> None:
    process, work = worker(tmp_path)
    with scratch_directory(tmp_path) as mine:
        assert left(tmp_path) == sorted([work, mine])
        assert (work / "half").stat().st_size == 1000
    assert left(tmp_path) == [work]
    end(process)
    assert process.returncode == 0
    assert left(tmp_path) == []


def test_two_of_one_process_do_not_meet(tmp_path: Path) -> None:
    with scratch_directory(tmp_path) as one, scratch_directory(tmp_path) as two:
        assert one != two
        assert left(tmp_path) == sorted([one, two])
