"""Cores of kernels and of HTTP: lists of cores, Linux' facts about them, and which threads run where.

The placement is decided once, on the main thread before the runtime is imported; `on_kernel_cores` and `enter_kernels`
are called on any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

Cores = frozenset[int]
Text = Callable[[str], str]
"""The text of a file below the root, without blanks around it; "" if it cannot be read."""

MOST_CORES = 65_536  # more than any machine has: a typing error must not fill the memory
FEWEST_DIVIDED = 8  # with fewer, HTTP's core would slow prompts by more than a seventh
CORES_PER_HTTP = 16  # the part of many cores for HTTP and grammars


# --- lists of cores ---------------------------------------------------------------------------------------------------


def parse_cores(text: str) -> Cores:
    """The cores of a list as Linux writes it: `0-3,8` are five. Raises: ValueError if it is malformed or empty."""
    cores: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        begin, end = _number(first), _number(last if dash else first)
        if not begin <= end < MOST_CORES:
            raise ValueError(text)
        cores.update(range(begin, end + 1))
    return frozenset(cores)


def parse_nodes(text: str) -> tuple[Cores, ...]:
    """The cores of each node: `0-3/4-7` are two. Raises: ValueError if a node is empty, or two share a core."""
    nodes = tuple(map(parse_cores, text.split("/")))
    if sum(map(len, nodes)) != len(frozenset().union(*nodes)):
        raise ValueError(text)
    return nodes


def show_cores(cores: Iterable[int]) -> str:
    """The shortest list of these cores, in the form of `parse_cores`; "none" without any."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs) or "none"


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(text)
    return int(text)


# --- the machine ------------------------------------------------------------------------------------------------------


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
            tuple(kept for core in self.physical if (kept := core & cores)),
            tuple(kept for node in self.nodes if (kept := node & cores)),
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


# --- placement --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Placement:
    """None = the system chooses, or one kernel thread per core. `is_tied`: kernel threads may be tied to cores.

    `nodes`: of each memory node's engine; divided before this process restricts itself.
    """

    kernels: Cores | None = None
    http: Cores | None = None
    num_threads: int | None = None
    is_tied: bool = True
    nodes: tuple[Placement, ...] = ()

    def __str__(self) -> str:
        """The placement in words; "" without one."""
        if self.nodes:
            return "; ".join(f"node{number}: {node}" for number, node in enumerate(self.nodes))
        if self.kernels is not None and self.http is not None:
            return f"kernels on cores {show_cores(self.kernels)}, HTTP on {show_cores(self.http)}"
        return f"{self.num_threads} kernel threads, as the time quota allows" if self.num_threads else ""


class CoreError(ValueError):
    def __init__(self, option: str, problem: str) -> None:
        super().__init__(problem)
        self.option = option


def place(
    topology: Topology, kernels: Cores | None = None, http: Cores | None = None, *, is_split: bool = True
) -> Placement:
    """The cores of kernels and of HTTP. `kernels`, `http`: the operator's choices. Raises: CoreError.

    `is_split` False = HTTP gets separate cores only by the operator's choice.
    """
    for option, chosen in (("cores", kernels), ("http_cores", http)):
        if chosen is not None and not chosen <= topology.allowed:
            raise CoreError(option, f"must be cores that this process may use: {show_cores(topology.allowed)}")
    if kernels is not None:
        return Placement(kernels, http or _beside(topology, kernels, is_split=is_split))
    if http is not None:
        left = _first_threads(topology, without=http)
        if not left:
            raise CoreError("http_cores", f"must leave the kernels at least one core of {show_cores(topology.allowed)}")
        return Placement(left, http)
    if topology.quota is not None and topology.quota < len(topology.physical):
        return Placement(num_threads=max(1, int(topology.quota)), is_tied=False)
    num_kept = _num_kept(len(topology.physical)) if is_split else 0
    if not num_kept:
        return Placement()
    kept = frozenset().union(*topology.physical[-num_kept:])
    return Placement(_first_threads(topology, without=kept), kept)


def _num_kept(num_physical: int) -> int:
    """The number of physical cores left to HTTP: the last ones, as the runtime uses the first socket."""
    return 0 if num_physical < FEWEST_DIVIDED else max(1, num_physical // CORES_PER_HTTP)


def _beside(topology: Topology, kernels: Cores, *, is_split: bool) -> Cores:
    """HTTP's cores beside chosen kernel cores: idle physical ones, else the rest, else the same."""
    if not is_split:
        return kernels
    idle = frozenset().union(*(core for core in topology.physical if not core & kernels))
    return idle or topology.allowed - kernels or kernels


def _first_threads(topology: Topology, without: Cores) -> Cores:
    whole = frozenset(min(core) for core in topology.physical if not core & without)
    return whole or frozenset(min(core - without) for core in topology.physical if core - without)


class _Applied:
    """`lock` guards `num_compiling`, the number of loading threads."""

    def __init__(self) -> None:
        self.placement = Placement()
        self.num_compiling = 0
        self.lock = threading.Lock()


_applied = _Applied()


def apply(placement: Placement) -> None:
    """Apply the placement to this process, on the main thread. Raises: OSError if the system refuses."""
    if placement.kernels is not None:
        os.sched_setaffinity(0, placement.kernels)
    _applied.placement = placement


def applied() -> Placement:
    return _applied.placement


def enter_kernels() -> None:
    """Move the calling thread to the kernels' cores, as the kernels wait for it."""
    if _applied.placement.kernels is not None:
        os.sched_setaffinity(0, _applied.placement.kernels)


@contextmanager
def on_kernel_cores() -> Iterator[None]:
    """Put new threads of the runtime, the calling thread and the main thread on the kernels' cores within the block.

    The runtime (OpenVINO 2026.4, by experiment) reads the main thread's cores at its import, and again for new threads
    when a graph is compiled; with the main thread elsewhere, all workers of a second model were tied to one core. So the
    main thread has the kernels' cores during both, and HTTP's cores in between.
    """
    placement = _applied.placement
    if placement.kernels is None or placement.http is None:
        yield
        return
    with _applied.lock:
        _applied.num_compiling += 1
        os.sched_setaffinity(os.getpid(), placement.kernels)
    enter_kernels()
    try:
        yield
    finally:
        with _applied.lock:
            _applied.num_compiling -= 1
            if not _applied.num_compiling:
                os.sched_setaffinity(os.getpid(), placement.http)
