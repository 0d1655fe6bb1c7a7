"""Row 6: from process start to the first token over HTTP, cold and warm.

Does: cold = nothing the server keeps between starts, and the model's files dropped from the page cache; warm = the same
start again. Our server, vLLM and llama.cpp, one after the other. Does not: drop the page cache for programs and libraries.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving import peers
from benchmarks.serving.load import FORMS, LoadFailed, Workload, ask
from benchmarks.serving.processes import ProcessFailed, Server, ServerProcess
from benchmarks.serving.results import Result
from benchmarks.serving.settings import Settings
from benchmarks.serving.turns import say

ROW = 6
TITLE = "Start to first token"

_SEEDS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds from process start until the server said it was ready, and until a client had its first token."""

    ready_s: float
    first_token_s: float


def measure(server: Server, logs: Path) -> StartTimes:
    """Start the server, ask once, end it. Raises: ProcessFailed, LoadFailed."""
    with ServerProcess(server, logs) as process:
        timing = asyncio.run(ask(server.url, FORMS[server.form], Workload(16, 2, seed=next(_SEEDS)), 0))
        if timing.error:
            raise LoadFailed(timing.error)
        return StartTimes(round(process.ready_s, 2), round(timing.token_times_s[0] - process.begin_s, 2))


def drop_from_page_cache(files: Iterator[Path]) -> None:
    """Let the kernel forget what it holds of these files, so that the next reader waits for the disk."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # only clean pages can be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def run(settings: Settings) -> Iterator[Result]:
    """One result per server: medians for ours, which is quick; the peers are started `long_rounds` times."""
    names = ["vLLM", "llama.cpp"] if settings.peers_only else ["dragoman (int8)", "vLLM", "llama.cpp"]
    for name in names:
        if name.lower() in settings.without:
            continue
        rounds = settings.rounds if name.startswith("dragoman") else settings.long_rounds
        try:
            runs = [_cold_and_warm(settings, name) for _ in range(rounds)]
        except (ProcessFailed, LoadFailed) as error:
            yield Result(ROW, name, {"failed": str(error)})
            continue
        values = {
            "cold_s": statistics.median(cold.first_token_s for cold, _ in runs),
            "warm_s": statistics.median(warm.first_token_s for _, warm in runs),
            "cold_ready_s": statistics.median(cold.ready_s for cold, _ in runs),
            "warm_ready_s": statistics.median(warm.ready_s for _, warm in runs),
        }
        yield Result(ROW, name, values, {"rounds": rounds})


def _cold_and_warm(settings: Settings, name: str) -> tuple[StartTimes, StartTimes]:
    settings.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=settings.out) as fresh:
        server = _server(settings, name, Path(fresh))
        drop_from_page_cache(file for file in settings.model.iterdir() if file.is_file())
        cold = measure(server, settings.logs)
        warm = measure(server, settings.logs)
    say(f"{name}: first token after {cold.first_token_s:.1f} s cold, {warm.first_token_s:.1f} s warm")
    return cold, warm


def _server(settings: Settings, name: str, caches: Path) -> Server:
    """The server, keeping what it compiles in `caches`. Raises: ProcessFailed if it is not installed."""
    found: Server | None
    if name == "vLLM":
        found = peers.vllm_server(settings.peers, settings.model, caches, settings.vllm_dtype)
    elif name == "llama.cpp":
        found = peers.llamacpp_server(settings.peers, settings.model / "model-Q8_0.gguf", 1, 1024)
    else:
        found = peers.plain_server(settings.model, caches)
    if found is None:
        raise ProcessFailed("not installed")
    return found
