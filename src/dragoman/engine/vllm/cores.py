"""Which cores each of vLLM's processes computes on, where it would not find them itself.

Does: divide the cores among the processes of a model that is spread over several (tensor, pipeline or data parallel) and
runs on a processor. vLLM gives each a memory node, and does not start where there are fewer nodes than processes. Does not:
overrule an operator who has set vLLM's variable. Called by the factory around vLLM's start, on the thread that builds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

from dragoman.cores.core_list import Cores
from dragoman.cores.topology import read_topology

VARIABLE = "VLLM_CPU_OMP_THREADS_BIND"
"""Cores of each process, between bars; source: vLLM's documentation of its backend for processors."""

_DEGREES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


@contextmanager
def divided_cores(arguments: Mapping[str, Any]) -> Iterator[None]:
    """What vLLM's processes find in the environment while they are started with these engine arguments."""
    topology = read_topology()
    num_processes = prod(int(arguments.get(name) or 1) for name in _DEGREES)
    if VARIABLE in os.environ or num_processes <= len(topology.nodes):
        yield
        return
    os.environ[VARIABLE] = divide(topology.physical, num_processes)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)


def divide(physical: Sequence[Cores], num_processes: int) -> str:
    """The value of vLLM's variable: to each process as many neighbouring cores, of each one thread, as to the next.

    "nobind", which lets threads run anywhere, where there are fewer cores than processes.
    """
    count = len(physical) // num_processes
    if not count:
        return "nobind"
    threads = [str(max(siblings)) for siblings in physical]
    return "|".join(",".join(threads[i * count : (i + 1) * count]) for i in range(num_processes))
