"""Lists of cores as Linux writes them: `0-3,8` are five cores, and `0-3/4-7` the cores of two nodes."""

from __future__ import annotations

from collections.abc import Iterable

Cores = frozenset[int]

MOST_CORES = 65_536  # more than any machine has: a typing error must not fill the memory


def parse_cores(text: str) -> Cores:
    """Raises: ValueError if the list is malformed or empty."""
    cores: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        begin, end = _number(first), _number(last if dash else first)
        if not begin <= end < MOST_CORES:
            raise ValueError(text)
        cores.update(range(begin, end + 1))
    return frozenset(cores)


def parse_nodes(text: str) -> tuple[Cores, ...]:
    """Raises: ValueError if a node is empty, or two share a core."""
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
