"""Chooses the cores of vLLM's processes where vLLM would not find them itself.

vLLM gives each process of a spread model a memory node, and does not start where there are fewer nodes than processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from dragoman.cores.topology import Topology

_DEGREES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def divide(arguments: Mapping[str, Any], topology: Topology) -> str | None:
    """The value of VLLM_CPU_OMP_THREADS_BIND for these engine arguments; None if each process has a memory node.

    Every process gets equally many neighbouring cores, one thread each. With fewer cores than processes it is "nobind".
    Source: vLLM's documentation of its backend for processors.
    """
    num_processes = prod(int(arguments.get(name) or 1) for name in _DEGREES)
    if num_processes <= len(topology.nodes):
        return None
    count = len(topology.physical) // num_processes
    if not count:
        return "nobind"
    threads = [str(max(siblings)) for siblings in topology.physical]
    return "|".join(",".join(threads[i * count : (i + 1) * count]) for i in range(num_processes))
