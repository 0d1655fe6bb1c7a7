"""Row 9: what happens when the KV cache is too small: more prefixes than fit, long prompts, preemption.

Does: run each load with an ample cache and with a small one, and compare throughput: a cliff would be a ratio far below
what the recomputation explains. Does not: compare with peers.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.serving import peers, watch
from benchmarks.serving.load import FORMS, LoadFailed, Timing, Workload, ask
from benchmarks.serving.processes import Server, ServerProcess
from benchmarks.serving.results import Result, Value
from benchmarks.serving.rows import throughput
from benchmarks.serving.settings import Settings
from benchmarks.serving.turns import say
from dragoman.models import BLOCK_SIZE
from dragoman.models.config import read_json

ROW = 9
TITLE = "Pressure on the cache"

_SEEDS = itertools.count(1)
_NUM_VISITS = 4  # of each prefix

Load = Callable[[str], float]  # server's URL -> tokens per second


@dataclass(frozen=True, slots=True)
class Pressure:
    """One load on one cache. `tokens_per_s` as the load defines it; the counters are the server's own, over the load."""

    tokens_per_s: float
    blocks: int
    preemptions: int
    prefix_hit_tokens: int


def measure(url: str, load: Load) -> Pressure:
    """Run the load and read the server's counters before and after. Raises: LoadFailed if a request failed."""
    before = watch.metrics(url)
    rate = load(url)
    after = watch.metrics(url)
    changes = {name: int(after[name] - before[name]) for name in (watch.PREEMPTIONS, watch.PREFIX_HITS)}
    return Pressure(round(rate, 1), int(after[watch.BLOCKS]), changes[watch.PREEMPTIONS], changes[watch.PREFIX_HITS])


def run(settings: Settings) -> Iterator[Result]:
    """Per load a result for the ample cache and for the small one; `ratio` is to the first of its load."""
    for name, cases in (
        ("prefixes", _prefix_cases(settings)),
        ("long prompts", _long_prompt_cases(settings)),
        (f"{settings.most_streams} streams", _stream_cases(settings)),
    ):
        first = 0.0
        for case, num_blocks, arguments, load in cases:
            server = _server(settings, num_blocks, *arguments)
            with ServerProcess(server, settings.logs) as process:
                throughput.measure(process.url, "openai", Workload(32, 4, seed=next(_SEEDS)), 2, 1)  # warm-up
                pressure = measure(process.url, load)
            first = first or pressure.tokens_per_s
            say(f"{name}, {case}: {pressure.tokens_per_s:.1f} tokens/s")
            values: dict[str, Value] = {**asdict(pressure), "ratio": round(pressure.tokens_per_s / first, 3)}
            yield Result(ROW, f"{name}, {case}", values)


def _server(settings: Settings, num_blocks: int, *arguments: str) -> Server:
    size_gb = (num_blocks + 0.5) * block_bytes(settings.model) / 2**30
    limits = ("--kv-cache-gb", f"{size_gb:.9f}", "--max-num-seqs", str(max(64, settings.most_streams)))
    return peers.plain_server(settings.model, settings.graphs, *limits, *arguments)


def block_bytes(model: Path) -> int:
    """Bytes of a block of keys and values of two bytes each."""
    config = read_json(model / "config.json")
    return 2 * 2 * int(config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]) * BLOCK_SIZE


def _blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


_Case = tuple[str, int, tuple[str, ...], Load]  # name, blocks, arguments of the server, load


def _prefix_cases(settings: Settings) -> list[_Case]:
    """Four times in turn through eight prefixes; the last time is measured. None cached is what must not be undercut."""
    prefix = settings.prefix_tokens // 2
    each = _blocks(prefix + 24)
    load = prefix_load(num_prefixes=8, prefix_tokens=prefix)
    return [
        ("none cached", 16 * each, ("--prefix-cache", "off"), load),
        ("all fit", 16 * each, (), load),
        ("half fit", 4 * each, (), load),
    ]


def prefix_load(num_prefixes: int, prefix_tokens: int) -> Load:
    """Requests per second times their tokens, two clients at a time, over the last visit of every prefix."""

    def load(url: str) -> float:
        seeds = [next(_SEEDS) for _ in range(num_prefixes)]
        workloads = [Workload(prefix_tokens + 16, 8, shared_prefix_tokens=prefix_tokens, seed=seed) for seed in seeds]
        for visit in range(_NUM_VISITS - 1):  # until the cache has learnt what comes back
            _check(asyncio.run(_in_order(url, workloads, visit)))
        begin_s = time.perf_counter()
        timings = asyncio.run(_in_order(url, workloads, _NUM_VISITS - 1))
        _check(timings)
        return num_prefixes * (prefix_tokens + 24) / (time.perf_counter() - begin_s)

    return load


async def _in_order(url: str, workloads: list[Workload], number: int) -> list[Timing]:
    """Request `number` of every workload, in order, two at a time."""
    waiting, timings = iter(workloads), []

    async def client() -> None:
        for workload in waiting:
            timings.append(await ask(url, FORMS["openai"], workload, number))

    await asyncio.gather(client(), client())
    return timings


def _long_prompt_cases(settings: Settings) -> list[_Case]:
    """Two long prompts at once, where both fit and where they must take turns."""
    each = _blocks(settings.longest_prompt + 16)

    def load(url: str) -> float:
        workload = Workload(settings.longest_prompt, 8, seed=next(_SEEDS))
        begin_s = time.perf_counter()
        throughput.measure(url, "openai", workload, 2, 1)
        return 2 * (settings.longest_prompt + 8) / (time.perf_counter() - begin_s)

    return [("both fit", 2 * each + 8, (), load), ("one and a half fit", each + each // 2, (), load)]


def _stream_cases(settings: Settings) -> list[_Case]:
    """Many streams that grow well beyond their prompts: admitted while short, then too many for the cache."""
    streams, prompt, output = settings.most_streams, 16, 64

    def load(url: str) -> float:
        return throughput.measure(url, "openai", Workload(prompt, output, seed=next(_SEEDS)), streams, 1)[
            "tokens_per_s"
        ]

    ample = streams * (_blocks(prompt + output) + 1)
    return [("all fit", ample, (), load), ("a third fits", max(ample // 4, 4), (), load)]


def _check(timings: list[Timing]) -> None:
    errors = [timing.error for timing in timings if timing.error]
    if errors:
        raise LoadFailed(f"{len(errors)} of {len(timings)} requests failed; the first: {errors[0]}")
