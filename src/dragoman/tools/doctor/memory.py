"""Examines the memory for models: its size, its speed (for less than a second), and the limits of the process."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from dragoman.host.machine import available_memory_bytes
from dragoman.tools.doctor.findings import Finding, Places, Section, in_gb

LEAST_BYTES = 512 << 20  # the runtime, its compiled code and a small model with a short context
_LEAST_DESCRIPTORS = 1024  # one per connection, and some files
_SMALLEST_BUFFER = 32 << 20

Limit = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Facts about memory, in bytes. `huge_pages`: "always", "madvise", "never", None = unknown.

    `available_bytes`: within the groups' limits. `address_space_bytes`: that the process may map, None = no limit.
    `bytes_per_s`: read by all cores together, None = no room to measure.
    """

    total_bytes: int | None
    available_bytes: int
    address_space_bytes: int | None
    open_files: int
    bytes_per_s: float | None
    huge_pages: str | None


def memory_facts(places: Places, num_threads: int, limit: Limit | None = None) -> MemoryFacts:
    """The facts about memory. `limit` returns a resource's hard limit, -1 = none; None = the kernel's."""
    limit = limit or (lambda kind: resource.getrlimit(kind)[1])
    root = places.root
    available = available_memory_bytes(root / "proc/meminfo", root / "sys/fs/cgroup", root / "proc/self/cgroup")
    space = limit(resource.RLIMIT_AS)
    modes = places.text("sys/kernel/mm/transparent_hugepage/enabled")
    return MemoryFacts(
        total_bytes=_total(places),
        available_bytes=available,
        address_space_bytes=None if space == resource.RLIM_INFINITY else space,
        open_files=limit(resource.RLIMIT_NOFILE),
        bytes_per_s=_bandwidth(num_threads, available),
        huge_pages=modes.partition("[")[2].partition("]")[0] or None,
    )


def memory_section(facts: MemoryFacts) -> Section:
    total = f" of {in_gb(facts.total_bytes)}" if facts.total_bytes is not None else ""
    speed = "too little to measure its speed" if facts.bytes_per_s is None else f"reads {in_gb(facts.bytes_per_s)}/s"
    pages = f", huge pages: {facts.huge_pages}" if facts.huge_pages else ""
    files = "any number of" if facts.open_files == resource.RLIM_INFINITY else facts.open_files
    lines = (
        f"{in_gb(facts.available_bytes)}{total} available, {speed}",
        f"{files} open files at most{pages}",
    )
    return Section("memory", lines, asdict(facts), tuple(_findings(facts)))


def _findings(facts: MemoryFacts) -> Iterator[Finding]:
    if facts.available_bytes < LEAST_BYTES:
        yield Finding(
            "problem",
            f"{in_gb(facts.available_bytes)} of memory are available, and even a small model needs {in_gb(LEAST_BYTES)}",
            "end other processes, or allow the container more memory",
        )
    if facts.address_space_bytes is not None:
        yield Finding(
            "warning",
            f"the process may map {in_gb(facts.address_space_bytes)} at most, its weights' files included",
            "ulimit -v unlimited, and bound memory by a control group instead",
        )
    if 0 <= facts.open_files < _LEAST_DESCRIPTORS:
        yield Finding(
            "warning",
            f"the process may open {facts.open_files} files at most, and each connection takes one",
            "raise it with ulimit -Hn 65536 or LimitNOFILE=65536 (systemd)",
        )


def _bandwidth(num_threads: int, available: int) -> float | None:
    try:
        from dragoman.tools.memory_speed import BUFFER_BYTES, memory_bandwidth
    except ImportError:  # numpy itself is broken
        return None
    size = min(BUFFER_BYTES, available // 4)
    try:
        return memory_bandwidth(num_threads, size) if size >= _SMALLEST_BUFFER else None
    except MemoryError:  # an unknown limit
        return None


def _total(places: Places) -> int | None:
    for line in places.text("proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None
