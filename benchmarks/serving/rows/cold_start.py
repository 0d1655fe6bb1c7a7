"""Row 6: from process start to the first token over HTTP, cold and warm.

Does: cold = nothing the server keeps between starts, and the model's files dropped from the page cache; unkept = nothing
that it keeps, but files in the page cache, of ours; warm = the same start again. Our server from safetensors and from a GGUF
file, vLLM, and llama.cpp from that file, one after the other. Does not: drop the page cache for programs and libraries.
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
    for name in _names(settings):
        if name.partition(" ")[0].lower() in settings.without:
            continue
        rounds = settings.rounds if name.startswith("dragoman") else settings.long_rounds
        if name == f"dragoman ({peers.file_kind(settings.file)})" and not settings.file.exists():
            yield Result(ROW, name, {"failed": f"there is no {settings.file}"})
            continue
        try:
            runs = [_starts(settings, name) for _ in range(rounds)]
        except (ProcessFailed, LoadFailed) as error:
            yield Result(ROW, name, {"failed": str(error)})
            continue
        values = {
            f"{start}_{part}": statistics.median(getattr(run[start], whole) for run in runs)
            for part, whole in (("s", "first_token_s"), ("ready_s", "ready_s"))
            for start in runs[0]
        }
        yield Result(ROW, name, values, {"rounds": rounds})


def _names(settings: Settings) -> list[str]:
    """What is started: ours are named after what they load."""
    kind = peers.file_kind(settings.file)
    ours = [] if settings.peers_only else ["dragoman (int8)", f"dragoman ({kind})"]
    return [*ours, "vLLM", f"llama.cpp ({kind})"]


def _starts(settings: Settings, name: str) -> dict[str, StartTimes]:
    """What each kind of start took."""
    settings.out.mkdir(parents=True, exist_ok=True)
    found = {}
    with tempfile.TemporaryDirectory(dir=settings.out) as kept, tempfile.TemporaryDirectory(dir=settings.out) as empty:
        server = _server(settings, name, Path(kept))
        files = {settings.file, *settings.model.iterdir()}
        drop_from_page_cache(file for file in files if file.is_file())
        found["cold"] = measure(server, settings.logs)
        if name.startswith("dragoman"):
            found["unkept"] = measure(_server(settings, name, Path(empty)), settings.logs)
        found["warm"] = measure(server, settings.logs)
    say(
        f"{name}: first token after "
        + ", ".join(f"{took.first_token_s:.1f} s {start}" for start, took in found.items())
    )
    return found


def _server(settings: Settings, name: str, caches: Path) -> Server:
    """The server, keeping what it compiles in `caches`. Raises: ProcessFailed if it is not installed."""
    found: Server | None
    if name == "vLLM":
        found = peers.vllm_server(settings.peers, settings.model, caches, settings.vllm_dtype)
    elif name.startswith("llama.cpp"):
        found = peers.llamacpp_server(settings.peers, settings.file, 1, 1024)
    else:
        model = settings.model if name == "dragoman (int8)" else settings.file
        found = peers.plain_server(model, caches, name=name)
    if found is None:
        raise ProcessFailed("not installed")
    return found
