"""Linux' facts about the cores: those that this process may use, threads of one core, memory nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dragoman.cores.core_list import Cores, parse_cores

Text = Callable[[str], str]
"""The text of a file below the root, without blanks around it; "" if it cannot be read."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The usable cores. `allowed`: logical cores. `physical`, `nodes`: the same, grouped.

    `quota`: the process time limit in cores, None = no limit.
    """

    allowed: Cores
    physical: tuple[Cores, ...]
    nodes: tuple[Cores, ...]
    quota: float | None = None

    def within(self, cores: Cores) -> Topology:
        return Topology(
            self.allowed & cores,
            tuple(kept for one in self.physical if (kept := one & cores)),
            tuple(kept for one in self.nodes if (kept := one & cores)),
            self.quota,
        )


def read_topology(root: Path = Path("/"), allowed: Cores | None = None) -> Topology:
    """`allowed` None = this process's affinity. Raises: AttributeError without Linux.

    If nothing can be read, each core is a physical one, and all are in one node.
    """

    def text(path: str) -> str:
        try:
            return (root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    usable = frozenset(os.sched_getaffinity(0)) if allowed is None else allowed
    physical: dict[Cores, None] = {}
    for core in sorted(usable):
        siblings = _listed(text(f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")) & usable
        physical[siblings if core in siblings else frozenset({core})] = None
    nodes = tuple(_nodes(root, text, usable))
    return Topology(usable, tuple(physical), nodes or (usable,), time_quota(text))


def _nodes(root: Path, text: Text, usable: Cores) -> Iterator[Cores]:
    folder = "sys/devices/system/node"
    names = (entry.name.removeprefix("node") for entry in (root / folder).glob("node[0-9]*"))
    for number in sorted(int(name) for name in names if name.isdecimal()):
        if cores := _listed(text(f"{folder}/node{number}/cpulist")) & usable:
            yield cores


def _listed(text: str) -> Cores:
    try:
        return parse_cores(text)
    except ValueError:  # "" = unknown; a node may have only memory
        return frozenset()


def time_quota(text: Text) -> float | None:
    """The smallest time limit of the process's groups, in cores. Source: cgroup-v2.rst, cpu.max; sched-bwc.rst."""
    found = []
    for group in _groups(text):
        limit, _, period = text(f"sys/fs/cgroup/{group}cpu.max").partition(" ")
        if limit.isdecimal() and period.isdecimal():
            found.append(int(limit) / int(period))
        limit_us = text(f"sys/fs/cgroup/cpu/{group}cpu.cfs_quota_us")  # -1 = none
        period_us = text(f"sys/fs/cgroup/cpu/{group}cpu.cfs_period_us")
        if limit_us.isdecimal() and period_us.isdecimal() and int(limit_us) and int(period_us):
            found.append(int(limit_us) / int(period_us))
    return min(found, default=None)


def _groups(text: Text) -> Iterator[str]:
    """The process's groups and their parents, as paths ending in a slash; "" is the outermost."""
    yield ""
    for line in text("proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "cpu" in controllers.split(","):
            parts = [part for part in path.split("/") if part and part != ".."]
            yield from ("/".join(parts[:end]) + "/" for end in range(1, len(parts) + 1))
