"""Row 3: what the server costs: tokens per second over HTTP, divided by those of the bare kernels on the same schedule.

Does: record the steps of an engine under the same closed loop (`recording`), then take turns: our server over HTTP, the
recorded steps on bare kernels. The client runs on the same cores and is part of the cost.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.serving import peers, watch
from benchmarks.serving.load import Workload
from benchmarks.serving.processes import JsonWorker, ServerProcess
from benchmarks.serving.results import Result, Value
from benchmarks.serving.rows import throughput
from benchmarks.serving.settings import Settings
from benchmarks.serving.turns import Contender, Metrics, say, take_turns

ROW = 3
TITLE = "Cost of the server"

_CACHE_GB = "4"
_SEEDS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians over the rounds. `ratio`: the median over the rounds of HTTP rate / replay rate."""

    http_tokens_per_s: float
    kernel_tokens_per_s: float
    ratio: float
    ratio_min: float
    ratio_max: float
    http_steps: float
    kernel_steps: float


def run(settings: Settings) -> Iterator[Result]:
    """One result for many streams, one for a single one."""
    server = peers.dragoman_server(
        settings.model, settings.graphs, "--kv-cache-gb", _CACHE_GB, name="dragoman over HTTP"
    )
    command = [sys.executable, "-m", "benchmarks.serving.kernel_worker", str(settings.model)]
    command += [f"kv_cache_gb={_CACHE_GB}", f"cache_dir={settings.graphs}"]
    with ServerProcess(server, settings.logs) as http:
        http.pause()
        with JsonWorker("bare kernels", command, settings.logs) as kernels:
            kernels.pause()
            for clients in dict.fromkeys((settings.clients, 1)):
                requests = settings.requests if clients > 1 else max(2, settings.requests)
                yield from _at(settings, http, kernels, clients, requests)


def _at(settings: Settings, http: ServerProcess, kernels: JsonWorker, clients: int, requests: int) -> Iterator[Result]:
    subject = f"{clients} stream{'s' if clients > 1 else ''}"
    load: dict[str, Value] = {"clients": clients, "requests": requests, "prompt_tokens": settings.prompt_tokens}
    load["output_tokens"] = settings.output_tokens
    with kernels.awake():
        recorded = kernels.ask({"record": {**load, "seed": next(_SEEDS)}})
    say(f"{subject}: {recorded['steps']} steps recorded, {recorded['tokens']} tokens")
    contenders: list[Contender[Metrics]] = [
        Contender("HTTP", http, _http_run(http, settings, clients, requests)),
        Contender("bare kernels", kernels, lambda: kernels.ask({"replay": True})),
    ]
    with http.awake():
        throughput.measure(http.url, "openai", Workload(settings.prompt_tokens, 4, seed=next(_SEEDS)), clients, 1)
    take_turns(contenders, settings.rounds, lambda run: f"{run['tokens_per_s']:.1f} tokens/s")
    failures = [f"{one.name}: {one.failure}" for one in contenders if one.failure]
    if failures:
        yield Result(ROW, subject, {"failed": ", ".join(failures)}, load)
        return
    cost = fold(contenders[0].runs, contenders[1].runs, recorded["steps"])
    values = {name: getattr(cost, name) for name in Cost.__dataclass_fields__}
    yield Result(ROW, subject, values, {**load, "rounds": settings.rounds})


def fold(http: Sequence[Metrics], kernels: Sequence[Metrics], kernel_steps: float) -> Cost:
    """The cost from the runs of both, round by round."""
    ratios = [ours["tokens_per_s"] / bare["tokens_per_s"] for ours, bare in zip(http, kernels, strict=True)]
    return Cost(
        http_tokens_per_s=statistics.median(run["tokens_per_s"] for run in http),
        kernel_tokens_per_s=statistics.median(run["tokens_per_s"] for run in kernels),
        ratio=round(statistics.median(ratios), 4),
        ratio_min=round(min(ratios), 4),
        ratio_max=round(max(ratios), 4),
        http_steps=statistics.median(run["steps"] for run in http),
        kernel_steps=kernel_steps,
    )


def _http_run(http: ServerProcess, settings: Settings, clients: int, requests: int) -> Callable[[], Metrics]:
    def once() -> Metrics:
        workload = Workload(settings.prompt_tokens, settings.output_tokens, seed=next(_SEEDS))
        before = watch.metrics(http.url)[watch.STEPS]
        measured = throughput.measure(http.url, "openai", workload, clients, requests)
        return {**measured, "steps": watch.metrics(http.url)[watch.STEPS] - before}

    return once
