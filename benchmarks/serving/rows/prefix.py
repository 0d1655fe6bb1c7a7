"""Row 4: time to first token behind a long shared prefix, the first time (uncached) and afterwards (cached).

Does: for each repetition a prefix nobody has sent before, asked twice with different endings. The server runs at its
defaults. Does not: compare with peers.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from benchmarks.serving import peers
from benchmarks.serving.load import FORMS, LoadFailed, Workload, ask
from benchmarks.serving.processes import ServerProcess
from benchmarks.serving.results import Result
from benchmarks.serving.settings import Settings
from benchmarks.serving.turns import say

ROW = 4
TITLE = "First token behind a shared prefix"

_OWN_TOKENS = 24  # of each prompt, behind the prefix
_OUTPUT_TOKENS = 4

_SEEDS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class PrefixLatency:
    """Medians in milliseconds, and how many times faster the cached prefix is."""

    prefix_tokens: int
    uncached_ms: float
    cached_ms: float
    speedup: float


def measure(url: str, prefix_tokens: int, repetitions: int) -> PrefixLatency:
    """Time to first token with and without a cached prefix. Raises: LoadFailed if a request failed."""
    uncached, cached = [], []
    for _ in range(repetitions):
        workload = Workload(
            prefix_tokens + _OWN_TOKENS, _OUTPUT_TOKENS, shared_prefix_tokens=prefix_tokens, seed=next(_SEEDS)
        )
        uncached.append(first_token_ms(url, workload, 0))
        cached.append(first_token_ms(url, workload, 1))
        say(f"prefix of {prefix_tokens}: {uncached[-1]:.0f} ms uncached, {cached[-1]:.0f} ms cached")
    medians = statistics.median(uncached), statistics.median(cached)
    return PrefixLatency(prefix_tokens, round(medians[0], 1), round(medians[1], 1), round(medians[0] / medians[1], 1))


def first_token_ms(url: str, workload: Workload, number: int) -> float:
    """Milliseconds until request `number` gets its first token. Raises: LoadFailed if it failed."""
    timing = asyncio.run(ask(url, FORMS["openai"], workload, number))
    if timing.error:
        raise LoadFailed(timing.error)
    return 1000 * (timing.token_times_s[0] - timing.start_s)


def run(settings: Settings) -> Iterator[Result]:
    """One result."""
    server = peers.plain_server(settings.model, settings.graphs)
    with ServerProcess(server, settings.logs) as process:
        first_token_ms(process.url, Workload(64, _OUTPUT_TOKENS, seed=next(_SEEDS)), 0)  # warm-up
        latency = measure(process.url, settings.prefix_tokens, settings.rounds)
    yield Result(ROW, "dragoman (int8)", asdict(latency), {"rounds": settings.rounds})
