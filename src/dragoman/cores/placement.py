"""Placement of threads: kernels on their own cores; HTTP, tokenising and grammars on the others.

Does: divide the cores, and tell Linux. Does not: start threads. Decided once, on the main thread before the runtime is
imported; `on_kernel_cores` and `enter_kernels` are called on any thread.

How the runtime's threads find their cores (OpenVINO 2026.4, by experiment): it asks once, when it is imported, which cores
the main thread may use. It makes one thread for each physical core of the first socket among them. When a graph is
compiled it asks the main thread's again and gives the new threads those; a thread that compiled has them afterwards too.
With the main thread elsewhere, all workers of a second model were tied to one core. So the main thread has the kernels'
cores while it imports and while anything is compiled, and goes to HTTP's cores in between. A new thread begins where its
maker is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dragoman.cores.core_list import Cores, show_cores
from dragoman.cores.topology import Topology

FEWEST_DIVIDED = 8  # with fewer, a core for HTTP would cost prompts more than a seventh
CORES_PER_HTTP = 16  # of many, HTTP and grammars get this part


@dataclass(frozen=True, slots=True)
class Placement:
    """`kernels`, `http`: the cores of each, None = threads are left where they are. `num_threads`: of the kernels where
    nobody says how many, None = one per core. `is_tied`: threads of the kernels may be tied to cores. `nodes`: where the
    engines of memory nodes run, where there is one for each; they are divided before this process keeps to its own cores.
    """

    kernels: Cores | None = None
    http: Cores | None = None
    num_threads: int | None = None
    is_tied: bool = True
    nodes: tuple[Placement, ...] = ()

    def __str__(self) -> str:
        """For people; "" where nothing is done."""
        if self.nodes:
            return "; ".join(f"node{number}: {one}" for number, one in enumerate(self.nodes))
        if self.kernels is not None and self.http is not None:
            return f"kernels on cores {show_cores(self.kernels)}, HTTP on {show_cores(self.http)}"
        return f"{self.num_threads} kernel threads, as the time quota allows" if self.num_threads else ""


class CoreError(ValueError):
    """The option `option` does not go with the cores that there are; the message says what it must be."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(problem)
        self.option = option


def place(
    topology: Topology, kernels: Cores | None = None, http: Cores | None = None, *, is_split: bool = True
) -> Placement:
    """The cores of kernels and of HTTP. `kernels`, `http`: those that the operator chose, None = not chosen.

    `is_split` False = nothing is kept from the kernels for HTTP unless the operator chose it. Raises: CoreError.
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
    """Physical cores that the kernels leave to HTTP. The last ones: of several sockets the runtime uses the first."""
    return 0 if num_physical < FEWEST_DIVIDED else max(1, num_physical // CORES_PER_HTTP)


def _beside(topology: Topology, kernels: Cores, *, is_split: bool) -> Cores:
    """HTTP's cores where the kernels' were chosen: physical ones that they leave idle, else the rest, else the same."""
    if not is_split:
        return kernels
    idle = frozenset().union(*(one for one in topology.physical if not one & kernels))
    return idle or topology.allowed - kernels or kernels


def _first_threads(topology: Topology, without: Cores) -> Cores:
    """A thread of each physical core, of those cores of which nothing is taken; if all are, what is left of them."""
    whole = frozenset(min(one) for one in topology.physical if not one & without)
    return whole or frozenset(min(one - without) for one in topology.physical if one - without)


class _Applied:
    """The placement in this process. `lock` guards `num_compiling`: how many threads load a model now."""

    def __init__(self) -> None:
        self.placement = Placement()
        self.num_compiling = 0
        self.lock = threading.Lock()


_applied = _Applied()


def apply(placement: Placement) -> None:
    """Have this process run so, from now on. On the main thread, before the runtime is imported.

    Raises: OSError if the system does not let it; nothing is changed then.
    """
    if placement.kernels is not None:
        os.sched_setaffinity(0, placement.kernels)
    _applied.placement = placement


def applied() -> Placement:
    """The placement that `apply` was called with."""
    return _applied.placement


def enter_kernels() -> None:
    """Have the calling thread run on the kernels' cores: what it computes, they wait for."""
    if _applied.placement.kernels is not None:
        os.sched_setaffinity(0, _applied.placement.kernels)


@contextmanager
def on_kernel_cores() -> Iterator[None]:
    """While this lasts, threads that the runtime makes are the kernels'; the calling thread and the main one are too.

    When nobody does this any more, the main thread goes to HTTP's cores.
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
