"""Row 3: what the server costs: tokens per second over HTTP, divided by those of the bare kernels on the same schedule.

Does: in every round a closed loop over HTTP, then the very steps that the engine ran for it once more on the bare kernels,
in the same process (`kernel_worker`). The client runs on the same cores as the server and is part of the cost.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from dataclasses import replace as changed

from benchmarks.serving import peers
from benchmarks.serving.load import Workload
from benchmarks.serving.processes import JsonWorker
from benchmarks.serving.results import Result, Value
from benchmarks.serving.rows import throughput
from benchmarks.serving.settings import Settings
from benchmarks.serving.turns import say

ROW = 3
TITLE = "Cost of the server"

_SEEDS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Round:
    """One run over HTTP and the replay of its steps; rates in output tokens per second."""

    http_tokens_per_s: float
    kernel_tokens_per_s: float
    steps: float
    tokens: float  # computed in these steps, prompts included


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians over the rounds. `ratio`: HTTP rate / replay rate, and its extremes."""

    http_tokens_per_s: float
    kernel_tokens_per_s: float
    ratio: float
    ratio_min: float
    ratio_max: float
    steps: float
    tokens: float


def measure(worker: JsonWorker, url: str, workload: Workload, clients: int, requests: int) -> Round:
    """One round. Raises: LoadFailed if a request failed, ProcessFailed if the server ended."""
    worker.ask({"forget": True})
    measured = throughput.measure(url, "openai", workload, clients, requests)
    told = worker.ask({"replay": True})
    num_output_tokens = clients * requests * workload.output_tokens
    kernel_rate = round(num_output_tokens / told["seconds"], 2)
    return Round(measured["tokens_per_s"], kernel_rate, told["steps"], told["tokens"])


def run(settings: Settings) -> Iterator[Result]:
    """One result for many streams, one for a single one."""
    server = peers.plain_server(settings.model, settings.graphs, "--kv-cache-gb", "4")
    arguments = list(server.command)[list(server.command).index("serve") + 1 :]
    server = changed(server, command=[sys.executable, "-m", "benchmarks.serving.kernel_worker", *arguments])
    with JsonWorker("dragoman, recorded", server.command, settings.logs) as worker:
        worker.wait_until_ready(server)
        for clients in dict.fromkeys((settings.clients, 1)):
            requests = settings.requests if clients > 1 else max(2, settings.requests)
            warm_up = Workload(settings.prompt_tokens, 4, seed=next(_SEEDS))
            throughput.measure(server.url, "openai", warm_up, clients, 1)
            rounds = []
            for number in range(settings.rounds):
                workload = Workload(settings.prompt_tokens, settings.output_tokens, seed=next(_SEEDS))
                rounds.append(measure(worker, server.url, workload, clients, requests))
                say(f"round {number + 1}: {clients} streams: {rounds[-1]}")
            facts: dict[str, Value] = {**throughput.load_settings(settings), "clients": clients, "requests": requests}
            subject = f"{clients} stream{'s' if clients > 1 else ''}"
            yield Result(ROW, subject, asdict(fold(rounds)), facts)


def fold(rounds: Sequence[Round]) -> Cost:
    """The cost over all rounds."""
    ratios = [one.http_tokens_per_s / one.kernel_tokens_per_s for one in rounds]
    return Cost(
        http_tokens_per_s=statistics.median(one.http_tokens_per_s for one in rounds),
        kernel_tokens_per_s=statistics.median(one.kernel_tokens_per_s for one in rounds),
        ratio=round(statistics.median(ratios), 4),
        ratio_min=round(min(ratios), 4),
        ratio_max=round(max(ratios), 4),
        steps=statistics.median(one.steps for one in rounds),
        tokens=statistics.median(one.tokens for one in rounds),
    )
