"""Measures the memory that this process may still use, and could use on an idle machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

GIB, MIB = 1024**3, 1024**2

# Files with the limit, the use, and its part of file pages that the kernel can take back; of version 2, then 1.
# Source: the kernel's documentation, admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
_ACCOUNTS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_memory_bytes(
    meminfo: Path = Path("/proc/meminfo"),
    cgroup: Path = Path("/sys/fs/cgroup"),
    membership: Path = Path("/proc/self/cgroup"),
) -> int:
    """Memory that this process may still use: the kernel's available memory, within the limits of containers."""
    available = _kernels(meminfo, "MemAvailable:") or [4 * GIB]  # unknown on this system
    return min([*available, *_left_in_groups(cgroup, membership)])


def all_memory_bytes(
    meminfo: Path = Path("/proc/meminfo"),
    cgroup: Path = Path("/sys/fs/cgroup"),
    membership: Path = Path("/proc/self/cgroup"),
) -> int | None:
    """The memory of this machine, within the limits of containers: the same at every start. None = unknown."""
    return min([*_kernels(meminfo, "MemTotal:"), *_limits(cgroup, membership)], default=None)


def _kernels(meminfo: Path, name: str) -> list[int]:
    lines = meminfo.read_text().splitlines() if meminfo.exists() else ()
    return [int(line.split()[1]) * 1024 for line in lines if line.startswith(name)]


def in_mib(num_bytes: int) -> str:
    """A size for messages, rounded up: a needed size must not look smaller."""
    return f"{-(-num_bytes // MIB)} MiB"


def _left_in_groups(cgroup: Path, membership: Path) -> Iterator[int]:
    for group in dict.fromkeys(_groups(cgroup, membership)):
        for limit, used, reclaimable in _ACCOUNTS:
            try:
                num_left = int((group / limit).read_text()) - int((group / used).read_text())
                yield max(0, num_left + _statistic(group / "memory.stat", reclaimable))
            except (OSError, ValueError):
                pass  # no limit ("max"), or no such group


def _limits(cgroup: Path, membership: Path) -> Iterator[int]:
    for group in dict.fromkeys(_groups(cgroup, membership)):
        for limit, *_ in _ACCOUNTS:
            with suppress(OSError, ValueError):  # no limit ("max"), or no such group
                yield int((group / limit).read_text())


def _groups(cgroup: Path, membership: Path) -> Iterator[Path]:
    """The directories of the process's groups and their parents; in a container the root is its own group."""
    roots = (cgroup, cgroup / "memory")
    yield from roots
    for line in membership.read_text().splitlines() if membership.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            inside = PurePosixPath(path.lstrip("/"))
            yield from (root / part for root in roots for part in (inside, *inside.parents))


def _statistic(path: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(f"{name} ")), 0)
