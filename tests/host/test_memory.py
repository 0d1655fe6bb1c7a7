"""Memory is what the kernel says, within the container's limit."""

from __future__ import annotations

from pathlib import Path

from dragoman.host.memory import GIB, available_memory_bytes


def test_a_container_limit_bounds_the_available_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    8388608 kB\n")
    assert available_memory_bytes(meminfo, tmp_path) == 8 * GIB
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB // 4}\n")
    assert available_memory_bytes(meminfo, tmp_path) == GIB - GIB // 4
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory_bytes(meminfo, tmp_path) == 8 * GIB
