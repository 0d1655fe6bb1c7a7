"""Memory is what the kernel says, within the limits of the groups that hold this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.host.machine import GIB, all_memory_bytes, available_memory_bytes


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 9 kB\nMemAvailable:    8388608 kB\n")
    return path


def write_group(directory: Path, **values: object) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (directory / f"memory.{name}").write_text(f"{value}\n")


def test_a_container_limit_bounds_the_available_memory(meminfo: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert available_memory_bytes(meminfo, tmp_path, missing) == 8 * GIB
    write_group(tmp_path, max=GIB, current=GIB // 4, stat="anon 9\ninactive_file 0")
    assert available_memory_bytes(meminfo, tmp_path, missing) == GIB - GIB // 4
    write_group(tmp_path, max="max")
    assert available_memory_bytes(meminfo, tmp_path, missing) == 8 * GIB


def test_all_memory_is_the_machines_or_the_smallest_limit(meminfo: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert all_memory_bytes(meminfo, tmp_path, missing) == 9 * 1024
    meminfo.write_text(f"MemTotal: {8 * 1024**2} kB\nMemAvailable: 1 kB\n")
    assert all_memory_bytes(meminfo, tmp_path, missing) == 8 * GIB
    write_group(tmp_path, max="max", current=7 * GIB)
    assert all_memory_bytes(meminfo, tmp_path, missing) == 8 * GIB
    write_group(tmp_path, max=2 * GIB)
    assert all_memory_bytes(meminfo, tmp_path, missing) == 2 * GIB
    meminfo.unlink()
    assert all_memory_bytes(meminfo, tmp_path, missing) == 2 * GIB
    write_group(tmp_path, max="max")
    assert all_memory_bytes(meminfo, tmp_path, missing) is None


def test_file_pages_that_the_kernel_takes_back_do_not_count_as_used(meminfo: Path, tmp_path: Path) -> None:
    write_group(tmp_path, max=GIB, current=GIB, stat=f"inactive_file_x 7\ninactive_file {GIB // 2}")
    assert available_memory_bytes(meminfo, tmp_path, tmp_path / "missing") == GIB // 2


@pytest.mark.parametrize("limited", ["service.slice/dragoman.service", "service.slice"])
def test_the_limits_of_all_groups_around_the_process_count(limited: str, meminfo: Path, tmp_path: Path) -> None:
    (tmp_path / "membership").write_text("1:cpu:/other\n0::/service.slice/dragoman.service\n")
    for group in ("service.slice/dragoman.service", "service.slice"):
        write_group(tmp_path / group, max="max", current=1, stat="inactive_file 0")
    write_group(tmp_path / limited, max=2 * GIB, current=GIB)
    assert available_memory_bytes(meminfo, tmp_path, tmp_path / "membership") == GIB


@pytest.mark.parametrize("place", ["memory", "memory/docker/id"], ids=["in a container", "outside"])
def test_limits_are_read_from_groups_of_version_1_too(place: str, meminfo: Path, tmp_path: Path) -> None:
    (tmp_path / "membership").write_text("9:name=systemd:/\n4:memory:/docker/id\n0::/\n")
    write_group(tmp_path / place, limit_in_bytes=3 * GIB, usage_in_bytes=2 * GIB, stat=f"total_inactive_file {GIB}")
    assert available_memory_bytes(meminfo, tmp_path, tmp_path / "membership") == 2 * GIB
