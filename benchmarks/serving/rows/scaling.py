"""Row 8: throughput and memory as streams grow, and the cost of a token as prompts grow.

Does: 1, 2, 4, ... streams with short prompts, resident memory after each; then single prompts of growing length. Without
prefix cache, so that memory shows what running streams need, and not what is kept of those that ended.
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
from benchmarks.serving.rows import throughput
from benchmarks.serving.settings import Settings
from benchmarks.serving.turns import medians, say

ROW = 8
TITLE = "Scaling"

PROMPT_TOKENS, OUTPUT_TOKENS = 32, 32  # of the growing number of streams
_SEEDS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class PromptCost:
    """One request alone: milliseconds until its first token, per prompt token, and per output token behind the prompt."""

    prompt_tokens: int
    ttft_ms: float
    ms_per_prompt_token: float
    ms_per_output_token: float


def measure_prompt(url: str, prompt_tokens: int) -> PromptCost:
    """The cost of a prompt nobody has sent before. Raises: LoadFailed if the request failed."""
    timing = asyncio.run(ask(url, FORMS["openai"], Workload(prompt_tokens, 16, seed=next(_SEEDS)), 0))
    if timing.error:
        raise LoadFailed(timing.error)
    ttft_ms = 1000 * (timing.token_times_s[0] - timing.start_s)
    gaps = [1000 * (after - before) for before, after in itertools.pairwise(timing.token_times_s)]
    per_token = round(ttft_ms / prompt_tokens, 3)
    return PromptCost(prompt_tokens, round(ttft_ms, 1), per_token, round(statistics.median(gaps), 2))


def doubling(first: int, last: int, factor: int = 2) -> list[int]:
    """`first`, `first` * `factor`, ... up to `last`, which is always there."""
    values = list(itertools.takewhile(lambda value: value < last, (first * factor**n for n in itertools.count())))
    return [*values, last]


def run(settings: Settings) -> Iterator[Result]:
    """A result per number of streams, one for memory per stream, and one per prompt length."""
    top = settings.most_streams
    arguments = ("--max-num-seqs", str(top), "--prefix-cache", "off", "--kv-cache-gb", "4")
    server = peers.plain_server(settings.model, settings.graphs, *arguments)
    rss_mb: dict[int, float] = {}
    with ServerProcess(server, settings.logs) as process:
        throughput.measure(process.url, "openai", Workload(PROMPT_TOKENS, 4, seed=next(_SEEDS)), 2, 1)  # warm-up
        for streams in doubling(1, top):
            requests = 4 if streams <= 4 else 2 if streams <= 16 else 1
            runs = []
            for _ in range(settings.long_rounds):
                workload = Workload(PROMPT_TOKENS, OUTPUT_TOKENS, seed=next(_SEEDS))
                runs.append(throughput.measure(process.url, "openai", workload, streams, requests))
            rss_mb[streams] = round(process.rss_bytes() / 1e6, 1)
            values = {**medians(runs), "streams": streams, "rss_mb": rss_mb[streams]}
            say(f"{streams} streams: {values['tokens_per_s']:.1f} tokens/s, {rss_mb[streams]:.0f} MB")
            facts = {"prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS, "rounds": settings.long_rounds}
            yield Result(ROW, f"{streams} stream{'s' if streams > 1 else ''}", values, facts)
        if top > 1:
            per_stream = round((rss_mb[top] - rss_mb[1]) / (top - 1), 2)
            yield Result(ROW, "memory per stream", {"mb_per_stream": per_stream, "rss_mb": rss_mb[1]})
        for length in doubling(128, settings.longest_prompt, factor=4):
            cost = measure_prompt(process.url, length)
            say(f"prompt of {length}: {cost.ms_per_prompt_token:.2f} ms per token")
            yield Result(ROW, f"prompt of {length}", asdict(cost))
