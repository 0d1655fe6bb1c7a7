"""Lists of cores as Linux writes them: `0-3,8` are five cores, and `0-3/4-7` the cores of two nodes.

Does: read and write them. Does not: know which cores there are. Pure; used by the options and by what reads /sys.
"""

from __future__ import annotations

from collections.abc import Iterable

Cores = frozenset[int]

MOST_CORES = 65_536  # more than any machine has: a slip of the keyboard must not fill the memory


def parse_cores(text: str) -> Cores:
    """The cores of a list. Raises: ValueError if it is none, or empty."""
    cores: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        begin, end = _number(first), _number(last if dash else first)
        if not begin <= end < MOST_CORES:
            raise ValueError(text)
        cores.update(range(begin, end + 1))
    return frozenset(cores)


def parse_nodes(text: str) -> tuple[Cores, ...]:
    """The cores of each node. Raises: ValueError if one has none, or two have the same."""
    nodes = tuple(map(parse_cores, text.split("/")))
    if sum(map(len, nodes)) != len(frozenset().union(*nodes)):
        raise ValueError(text)
    return nodes


def show_cores(cores: Iterable[int]) -> str:
    """The shortest list of them, as `parse_cores` reads it; "none" if there are none."""
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
