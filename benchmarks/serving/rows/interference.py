"""Row 5: what a long prompt does to streams that are running, and what computing it in pieces costs.

Does: run 1, 4 and 8 streams, send a long prompt while they decode, and look at the gaps between their tokens until its
first token is there; with the prompt computed whole, in pieces of fixed sizes, and paced as the server does by default.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.serving import peers
from benchmarks.serving.load import FORMS, LoadFailed, Timing, Workload, ask
from benchmarks.serving.processes import ServerProcess
from benchmarks.serving.results import Result, Value
from benchmarks.serving.settings import Settings
from benchmarks.serving.turns import say
from dragoman.tools.percentiles import percentile

ROW = 5
TITLE = "Running streams while a long prompt is computed"

STREAMS = (1, 4, 8)
STEP_TOKENS = (128, 256, 512)

_PROMPT_TOKENS = 32
_PIECES_BEFORE = 8  # of every stream, before the long prompt is sent
_SEEDS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Interference:
    """One run. `quiet_ms`, `busy_ms`: the streams' gaps before the long prompt was sent, and those that overlap it."""

    quiet_ms: tuple[float, ...]
    busy_ms: tuple[float, ...]
    prefill_ms: float
    tokens_per_s: float  # all prompt and output tokens of the run, by its whole time


def measure(url: str, streams: int, prefill_tokens: int, output_tokens: int) -> Interference:
    """Send a prompt of `prefill_tokens` into `streams` running streams of `output_tokens`. Raises: LoadFailed."""
    running, prefill = asyncio.run(_run(url, streams, prefill_tokens, output_tokens))
    for timing in [*running, prefill]:
        if timing.error:
            raise LoadFailed(timing.error)
    span_s = max(one.end_s for one in [*running, prefill]) - min(one.start_s for one in running)
    num_tokens = streams * (_PROMPT_TOKENS + output_tokens) + prefill_tokens + 1
    quiet, busy = gaps(running, prefill.start_s, prefill.token_times_s[0])
    return Interference(quiet, busy, 1000 * (prefill.token_times_s[0] - prefill.start_s), num_tokens / span_s)


async def _run(url: str, streams: int, prefill_tokens: int, output_tokens: int) -> tuple[list[Timing], Timing]:
    form, waiting = FORMS["openai"], streams
    all_decode = asyncio.Event()

    def on_piece(num_pieces: int) -> None:
        nonlocal waiting
        waiting -= num_pieces == _PIECES_BEFORE
        if not waiting:
            all_decode.set()

    workload = Workload(_PROMPT_TOKENS, output_tokens, seed=next(_SEEDS))
    tasks = [asyncio.ensure_future(ask(url, form, workload, number, on_piece)) for number in range(streams)]
    decoding = asyncio.ensure_future(all_decode.wait())
    together = asyncio.gather(*tasks)
    await asyncio.wait((decoding, together), return_when=asyncio.FIRST_COMPLETED)  # a stream that fails is done early
    decoding.cancel()
    prefill = await ask(url, form, Workload(prefill_tokens, 1, seed=next(_SEEDS)), 0)
    return list(await together), prefill


def gaps(running: Sequence[Timing], begin_s: float, end_s: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The gaps between tokens, in ms: those that end before `begin_s`, and those that overlap [begin_s, end_s]."""
    pairs = [pair for one in running for pair in itertools.pairwise(one.token_times_s)]
    quiet = tuple(1000 * (after - before) for before, after in pairs if after <= begin_s)
    busy = tuple(1000 * (after - before) for before, after in pairs if after > begin_s and before < end_s)
    return quiet, busy


def run(settings: Settings) -> Iterator[Result]:
    """One result for each case and number of streams; `vs_whole` compares its throughput with the whole prompt's."""
    rates: dict[int, float] = {}
    # the same work in every case: long enough to run beside the most pieces
    output_tokens = 2 * _PIECES_BEFORE - (-settings.prefill_tokens // (min(STEP_TOKENS) - max(STREAMS)))
    for name, arguments in cases(settings.prefill_tokens).items():
        with ServerProcess(peers.plain_server(settings.model, settings.graphs, *arguments), settings.logs) as process:
            for streams in STREAMS:  # warm-up; the paced case also learns what a step costs
                measure(process.url, streams, _PROMPT_TOKENS, 2 * _PIECES_BEFORE)
            for streams in STREAMS:
                runs = [
                    measure(process.url, streams, settings.prefill_tokens, output_tokens)
                    for _ in range(settings.long_rounds)
                ]
                values = fold(runs)
                rates.setdefault(streams, values["tokens_per_s"])
                subject = f"{streams} stream{'s' if streams > 1 else ''}, {name}"
                say(f"{subject}: p99 {values['busy_ms_p99']:.0f} ms, {values['tokens_per_s']:.0f} tokens/s")
                compared = {"vs_whole": round(values["tokens_per_s"] / rates[streams], 3)}
                facts: dict[str, Value] = {
                    "prefill_tokens": settings.prefill_tokens,
                    "output_tokens": output_tokens,
                    "rounds": settings.long_rounds,
                }
                yield Result(ROW, subject, {**values, **compared}, facts)


def cases(prefill_tokens: int) -> dict[str, tuple[str, ...]]:
    """The server's arguments for each way to compute a prompt: whole (first), in pieces of fixed sizes, by default."""
    whole = prefill_tokens + 64
    sizes = {"prompt whole": whole} | {f"steps of {size}": size for size in reversed(STEP_TOKENS) if size < whole}
    fixed = {name: ("--max-step-slowdown", "0", "--max-batch-tokens", str(size)) for name, size in sizes.items()}
    return {**fixed, "default": ()}


def fold(runs: Sequence[Interference]) -> dict[str, float]:
    """Percentiles over the gaps of all runs; medians of the rest."""
    quiet = [gap for run in runs for gap in run.quiet_ms]
    busy = [gap for run in runs for gap in run.busy_ms]
    return {
        "quiet_ms_p50": round(statistics.median(quiet), 1),
        "busy_ms_p50": round(statistics.median(busy), 1),
        "busy_ms_p99": round(percentile(busy, 0.99), 1),
        "busy_gaps": len(busy),
        "prefill_ms": round(statistics.median(run.prefill_ms for run in runs), 0),
        "tokens_per_s": round(statistics.median(run.tokens_per_s for run in runs), 1),
    }
