"""The memory of a process, and how it grows with what the process has done.

Does: read it as Linux tells it; fit a line. Does not: decide when it is read (`load` does).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SLOPE_REQUESTS = 10_000


@dataclass(frozen=True, slots=True)
class Memory:
    """A process's memory in MiB: all of it, its share of what several processes map, and what is no file's."""

    rss: float
    pss: float
    anonymous: float

    @classmethod
    def of(cls, pid: int) -> Memory:
        """What the kernel counts for a process. Raises: OSError if it has ended."""
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return cls(*(round(kib[name] / 1024, 1) for name in ("Rss", "Pss", "Anonymous")))


@dataclass(frozen=True, slots=True)
class Reading:
    """The server's memory after so many requests. `is_settled`: a model has just been unloaded and its memory given back,
    and no request has pictures.

    Between such moments memory rises and falls by what a model takes; only readings of one kind can be compared.
    """

    num_requests: int
    seconds: float
    memory: Memory
    is_settled: bool = False


class Slope(NamedTuple):
    """MiB per 10,000 requests, and the standard error of that."""

    mib: float
    error: float


def slope(readings: Sequence[Reading], *, of: str) -> Slope | None:
    """The line through readings by least squares; None for fewer than three. `of` names one of `Memory`'s numbers."""
    requests = [reading.num_requests / SLOPE_REQUESTS for reading in readings]
    if len(set(requests)) < 3:
        return None
    sizes = [float(getattr(reading.memory, of)) for reading in readings]
    line = statistics.linear_regression(requests, sizes)
    residues = [size - line.intercept - line.slope * x for x, size in zip(requests, sizes, strict=True)]
    spread = math.sqrt(statistics.variance(requests) * (len(requests) - 1))
    error = math.sqrt(sum(residue * residue for residue in residues) / (len(requests) - 2)) / spread
    return Slope(round(line.slope, 2), round(error, 2))


def comparable(readings: Sequence[Reading]) -> Sequence[Reading]:
    """Those of settled moments, all if there are none."""
    return [reading for reading in readings if reading.is_settled] or readings
