"""Processes that share a directory, are killed there, and fill the disk: real ones on a real file system."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dragoman.prefix_store import BlockStore
from tests.prefix_store import processes
from tests.prefix_store.blocks import content, key
from tests.support import tiers

ROOT = Path(__file__).parents[2]


def test_a_process_that_is_killed_at_any_moment_loses_nothing_that_it_had_written(tmp_path: Path) -> None:
    """Others write, read and delete in the same directory meanwhile, and all keep to one budget."""
    rounds = 200 if tiers.everything() else 20
    command = [sys.executable, "-m", processes.__name__, str(tmp_path / "store"), str(rounds), "1"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    told = json.loads(run.stdout)
    assert told["written"] >= rounds / 2
    assert (told["lost"], told["damaged"]) == (0, [])
    assert told["most"] <= processes.BUDGET
    assert "checksum" not in run.stderr


@contextmanager
def small_disk(path: Path, num_bytes: int) -> Iterator[Path]:
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")
def test_a_full_disk_costs_what_has_no_room_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as path:
        store = BlockStore.open(path / "store", 100 << 20, segment_bytes=300_000)
        assert "give it a smaller budget" in caplog.text
        written = [n for n in range(200) if store.write(key(n), content(n, 10_000))]
        assert 80 < len(written) < 105
        assert into_all(store, written)
        assert caplog.text.count("No space left on device") == 1
        store.close()
        again = BlockStore.open(path / "store", 600_000, segment_bytes=300_000)  # the advice was taken
        left = [n for n in written if key(n) in again]
        assert into_all(again, left)
        assert again.write(key(500), content(500, 10_000))
        assert into_all(again, [500])
        again.close()


def into_all(store: BlockStore, numbers: list[int]) -> bool:
    into = [bytearray(10_000) for _ in numbers]
    return store.read([key(n) for n in numbers], into) == len(numbers) and all(
        read == content(n, 10_000) for n, read in zip(numbers, into, strict=True)
    )
