"""Row 10: our server beside llama.cpp's with weights of the same size: streams and prompts, in turns, and our rates by its.

Does: int4 beside Q4_0, int8 beside Q8_0, and both servers on one GGUF file; one pair of servers after the other. Does not:
measure other peers (row 1 does).
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

from benchmarks.serving import peers
from benchmarks.serving.load import FORMS, LoadFailed, Workload, ask
from benchmarks.serving.processes import Server, ServerProcess
from benchmarks.serving.results import Result
from benchmarks.serving.rows import throughput
from benchmarks.serving.settings import Settings
from benchmarks.serving.turns import Contender, Metrics, failed, medians, start, take_turns

ROW = 10
TITLE = "Beside llama.cpp, with weights of the same size"

FEW_STREAMS = 4
_PROMPT_TOKENS, _FEW_PROMPT_TOKENS = 512, 32
_SEEDS = itertools.count(1)


def run(settings: Settings) -> Iterator[Result]:
    """For each pair the medians of both, and of our rates by llama.cpp's, round by round."""
    for ours, theirs in _pairs(settings):
        if theirs is None:
            yield Result(ROW, ours.name, {"failed": "llama.cpp or the file for it is missing"})
            continue
        failures: dict[str, str] = {}
        with ExitStack() as stack:
            contenders: list[Contender[Metrics]] = []
            for server in (ours, theirs):
                process = start(stack, server.name, partial(ServerProcess, server, settings.logs), failures)
                if process is not None:
                    contenders.append(Contender(server.name, process, partial(measure, server, settings)))
            take_turns(contenders, settings.rounds + 1, shown)
        failures |= {contender.name: contender.failure for contender in contenders if contender.failure}
        rounds = {one.name: one.runs[1:] for one in contenders if one.name not in failures}  # the first one warms up
        for name, runs in rounds.items():
            yield Result(ROW, name, medians(runs), throughput.load_settings(settings))
        if len(rounds) == 2:
            yield Result(ROW, f"{ours.name} by {theirs.name}", ratios(rounds[ours.name], rounds[theirs.name]))
        yield from failed(ROW, failures)


def _pairs(settings: Settings) -> Iterator[tuple[Server, Server | None]]:
    """Our server, and llama.cpp's; None if that is not there."""
    arguments = ("--kv-cache-gb", "4", "--max-num-seqs", str(max(settings.clients, 64)))
    slot_tokens = max(settings.prompt_tokens, _PROMPT_TOKENS) + 2 * settings.output_tokens + 64
    files = {dtype: settings.model / f"model-{kind}.gguf" for dtype, kind in (("int4", "Q4_0"), ("int8", "Q8_0"))}
    for dtype, file in {**files, "": settings.file}.items():
        chosen = ("--dtype", dtype) if dtype else ()
        name = f"dragoman ({dtype or peers.file_kind(file)})"
        ours = peers.plain_server(settings.model if dtype else file, settings.graphs, *chosen, *arguments, name=name)
        yield ours, peers.llamacpp_server(settings.peers, file, settings.clients, slot_tokens)


def measure(server: Server, settings: Settings) -> Metrics:
    """Tokens per second: output of one stream, of a few and of many, and of a prompt. Raises: LoadFailed."""
    first = _seconds(server, _FEW_PROMPT_TOKENS, 1)
    more = 2 * settings.output_tokens
    found = {"tokens_per_s_1": round(more / (_seconds(server, _FEW_PROMPT_TOKENS, 1 + more) - first), 2)}
    for streams in sorted({FEW_STREAMS, settings.clients}):
        workload = Workload(settings.prompt_tokens, settings.output_tokens, seed=next(_SEEDS))
        told = throughput.measure(server.url, server.form, workload, streams, settings.requests)
        found[f"tokens_per_s_{streams}"] = told["tokens_per_s"]
    return found | {"prompt_tokens_per_s": round(_PROMPT_TOKENS / _seconds(server, _PROMPT_TOKENS, 1), 1)}


def _seconds(server: Server, prompt_tokens: int, output_tokens: int) -> float:
    """Of a request alone, to its end: of llama.cpp's pieces some hold several tokens. Raises: LoadFailed if it failed."""
    workload = Workload(prompt_tokens, output_tokens, seed=next(_SEEDS))
    timing = asyncio.run(ask(server.url, FORMS[server.form], workload, 0))
    if timing.error:
        raise LoadFailed(timing.error)
    return timing.end_s - timing.start_s


def ratios(ours: Sequence[Metrics], theirs: Sequence[Metrics]) -> dict[str, float]:
    """The medians of our rates by theirs in the same round."""
    rounds = list(zip(ours, theirs, strict=False))
    return {key: round(statistics.median(own[key] / other[key] for own, other in rounds), 3) for key in ours[0]}


def shown(run: Metrics) -> str:
    """The rates of a round, for the person who waits."""
    return ", ".join(f"{rate:.1f}" for rate in run.values()) + " tokens/s"
