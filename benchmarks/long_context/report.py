"""Writes what was measured behind long contexts as tables of ratios.

Does: medians over rounds of ratios within a round, so that a slow minute counts for all alike; shares of the memory's
bandwidth. Does not: measure. Used by `__main__`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Times = Mapping[str, Sequence[float]]
"""Milliseconds by contender, round by round."""

TITLES = {"own": "own kernels", "openvino": "OpenVINO's", "genai": "GenAI", "llama.cpp": "llama.cpp"}


@dataclass(frozen=True, slots=True)
class Cell:
    """Steps of `streams` behind `context`, or prompts of `context` tokens (`streams` 0), whose `ms` are for a token.

    `gb`: what a step reads, 10^9 bytes, by contender. `skipped`: why a contender has no times.
    """

    part: str
    streams: int
    context: int
    ms: dict[str, list[float]] = field(default_factory=dict)
    gb: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.streams:
            return f"a prompt of {self.context:,} tokens"
        shared = ", shared by all" if self.part == "shared" else ""
        return f"{self.streams} behind {self.context:,}{shared}"

    @property
    def num_tokens(self) -> int:
        """That come in `ms`."""
        return self.streams or 1


@dataclass(frozen=True, slots=True)
class Pair:
    """Two cases that should cost the same, or nearly: times of both by contender."""

    part: str
    what: str
    first: dict[str, list[float]]
    second: dict[str, list[float]]


def ratio(times: Sequence[float], base: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(times, base, strict=True))


def share(cell: Cell, name: str, gb_per_s: float) -> float:
    """Of the memory's bandwidth that a contender's steps have."""
    return cell.gb[name] / (statistics.median(cell.ms[name]) / 1000) / gb_per_s


def cells_table(cells: Sequence[Cell], names: Sequence[str], gb_per_s: float) -> str:
    """A line for each cell: tokens per second of the first contender, and how many times those of each other they are.

    In brackets stands the share of the memory's bandwidth, of steps. Why cells are empty stands below.
    """
    first, *others = names
    heads = [f"{TITLES[first]}, tokens/s", *(f"by {TITLES[name]}" for name in others)]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for cell in cells:
        texts = [_cell(cell, name, first, gb_per_s) for name in names]
        lines.append(f"| {cell} | {' | '.join(texts)} |")
    lines += [f"\n{cell}: no {TITLES[name]}: {why}." for cell in cells for name, why in cell.skipped.items()]
    return "\n".join(lines)


def caches_table(cells: Sequence[Cell], names: Sequence[str], gb_per_s: float) -> str:
    """A line for each cell of decode steps: gigabytes of caches that the first contender reads in a second.

    The time is what a step takes beyond one of as many streams behind the shortest context. The other columns say how
    many times as long the other contenders' caches take. In brackets stands the share of the memory's bandwidth. "": all
    contexts are equally long.
    """
    first, *others = names
    steps = [cell for cell in cells if cell.part == "decode" and first in cell.ms]
    longest_first = sorted(steps, key=lambda cell: cell.context, reverse=True)
    shortest = {cell.streams: cell for cell in longest_first}  # the last one of a number of streams stays
    longer = [cell for cell in steps if cell.context > shortest[cell.streams].context]
    if not longer:
        return ""
    heads = [f"{TITLES[first]}, caches in GB/s", *(f"by {TITLES[name]}" for name in others)]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for cell in longer:
        base = shortest[cell.streams]
        added = {name: _added(cell, base, name) for name in names if name in cell.ms and name in base.ms}
        gb_read = (cell.gb[first] - base.gb[first]) / (statistics.median(added[first]) / 1000)
        texts = [f"{ratio(added[name], added[first]):.2f}" if name in added else "-" for name in others]
        lines.append(f"| {' | '.join([str(cell), f'{gb_read:.1f} ({gb_read / gb_per_s:.0%})', *texts])} |")
    return "\n".join(lines)


def _added(cell: Cell, base: Cell, name: str) -> list[float]:
    """Milliseconds that a step takes beyond one of the base, round by round."""
    return [ms - base_ms for ms, base_ms in zip(cell.ms[name], base.ms[name], strict=True)]


def _cell(cell: Cell, name: str, first: str, gb_per_s: float) -> str:
    if name not in cell.ms:
        return "-"
    rate = 1000 * cell.num_tokens / statistics.median(cell.ms[name])
    if name == first or first not in cell.ms:
        text = f"{rate:,.1f}" if name == first else f"{rate:,.1f} tokens/s"
    else:
        text = f"{ratio(cell.ms[name], cell.ms[first]):.2f}"
    return f"{text} ({share(cell, name, gb_per_s):.0%})" if name in cell.gb else text


def pairs_table(pairs: Sequence[Pair], names: Sequence[str]) -> str:
    """A line for each pair: how many times the first case's time the second's is."""
    lines = [f"| second by first | {' | '.join(TITLES[name] for name in names)} |", "|---" * (len(names) + 1) + "|"]
    for pair in pairs:
        texts = [f"{ratio(pair.second[name], pair.first[name]):.2f}" if name in pair.first else "-" for name in names]
        lines.append(f"| {pair.what} | {' | '.join(texts)} |")
    return "\n".join(lines)
