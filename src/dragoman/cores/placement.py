"""Placement of threads: kernels on their own cores; HTTP, tokenising and grammars on the others.

Decided once, on the main thread before the runtime is imported; `on_kernel_cores` and `enter_kernels` are called on any
thread. The runtime (OpenVINO 2026.4, by experiment) reads the main thread's cores at its import, and again for new
threads when a graph is compiled; with the main thread elsewhere, all workers of a second model were tied to one core.
So the main thread has the kernels' cores during both, and HTTP's cores in between.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dragoman.cores.core_list import Cores, show_cores
from dragoman.cores.topology import Topology

FEWEST_DIVIDED = 8  # with fewer, HTTP's core would slow prompts by more than a seventh
CORES_PER_HTTP = 16  # the part of many cores for HTTP and grammars


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
            return "; ".join(f"node{number}: {one}" for number, one in enumerate(self.nodes))
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
    idle = frozenset().union(*(one for one in topology.physical if not one & kernels))
    return idle or topology.allowed - kernels or kernels


def _first_threads(topology: Topology, without: Cores) -> Cores:
    whole = frozenset(min(one) for one in topology.physical if not one & without)
    return whole or frozenset(min(one - without) for one in topology.physical if one - without)


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
    """Put new threads of the runtime, the calling thread and the main thread on the kernels' cores within the block."""
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
