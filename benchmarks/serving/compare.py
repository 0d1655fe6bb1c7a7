"""Runs everything in one go, interleaved: our server, the bare kernel loop and every installed peer, round by round.

Does: start all servers, send each the same load in turn, take medians, write a table, a plot and a last JSON line.
Does not: install peers (peers.py) or judge; a peer that is not installed is listed as missing.

    python -m benchmarks.serving.compare --model DIR --rounds 5 --output docs/performance.json --plot docs/performance.png
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.serving import peers
from benchmarks.serving.load import FORMS, Summary, Workload, closed_loop, summarize

BOUNDS = {"ttft_bound_ms": 4000.0, "itl_bound_ms": 150.0}


@dataclass
class Contender:
    """Something that is measured. `measure(clients, requests)` gives one run's summary, or only a rate."""

    name: str
    measure: Callable[[int, int], Summary | float]
    runs: dict[int, list[Summary | float]] = field(default_factory=dict)  # by number of clients
    start_s: float | None = None


def http_contender(server: peers.Server, workload: Workload) -> Contender:
    """A contender that is asked over HTTP."""

    seeds = itertools.count()

    def measure(clients: int, requests: int) -> Summary:
        fresh = replace(workload, seed=next(seeds))  # new prompts every time: a prefix cache must not help
        timings = asyncio.run(closed_loop(server.url, FORMS[server.form], fresh, clients, requests))
        return summarize(timings, workload.output_tokens, **BOUNDS)

    return Contender(server.name, measure)


def process_contender(name: str, command: list[str]) -> Contender:
    """A contender that runs by itself in a process and prints its rate as a JSON line."""

    def measure(clients: int, requests: int) -> float:
        words = [*command, "--clients", str(clients), "--requests", str(requests)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        return float(json.loads(done.stdout.strip().splitlines()[-1])["output_tokens_per_s"])

    return Contender(name, measure)


def rate_of(run: Summary | float) -> float:
    """Output tokens per second of a run."""
    return run if isinstance(run, float) else run.output_tokens_per_s


def median_rate(contender: Contender, clients: int) -> float:
    """The median over the rounds; 0 if there was none."""
    runs = contender.runs.get(clients)
    return statistics.median(rate_of(run) for run in runs) if runs else 0.0


def measure_all(contenders: list[Contender], given: argparse.Namespace) -> None:
    """Every contender once per round and number of clients, in turn."""
    for clients in given.clients:
        for contender in contenders:
            contender.measure(clients, 1)  # warm-up: caches, threads, first allocations
        for number in range(given.rounds):
            for contender in contenders:
                run = contender.measure(clients, given.requests)
                contender.runs.setdefault(clients, []).append(run)
                say(f"round {number + 1}, {clients:3} clients, {contender.name:28} {rate_of(run):8.1f} tokens/s")


def say(text: str) -> None:
    """Progress, for the person who waits."""
    sys.stderr.write(text + "\n")


def table(contenders: list[Contender], clients: list[int], missing: list[str]) -> str:
    """Rates, ratios to ours, and latencies, as Markdown."""
    ours = contenders[0]
    lines = ["| contender | clients | tokens/s | ours / it | first token ms | between tokens ms (p50, p99) | start s |"]
    lines.append("|---|---|---|---|---|---|---|")
    for count in clients:
        for contender in contenders:
            rate = median_rate(contender, count)
            if not rate:
                continue
            ratio = f"{median_rate(ours, count) / rate:.2f}"
            latencies = _latencies(contender, count)
            start = "" if contender.start_s is None else f"{contender.start_s:.1f}"
            lines.append(f"| {contender.name} | {count} | {rate:.0f} | {ratio} | {latencies} | {start} |")
    lines += [f"| {name} | | not installed | | | | |" for name in missing]
    return "\n".join(lines)


def _latencies(contender: Contender, clients: int) -> str:
    runs = [run for run in contender.runs[clients] if isinstance(run, Summary)]
    if not runs:
        return " | "
    first = statistics.median(run.ttft_ms_p50 for run in runs)
    p50, p99 = (statistics.median(getattr(run, name) for run in runs) for name in ("itl_ms_p50", "itl_ms_p99"))
    return f"{first:.0f} | {p50:.1f}, {p99:.1f}"


def plot(contenders: list[Contender], clients: list[int], target: Path) -> None:
    """Bars of tokens per second, one panel per number of clients. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(clients), figsize=(5 * len(clients), 4), squeeze=False)
    for panel, count in zip(axes[0], clients, strict=True):
        shown = [contender for contender in contenders if median_rate(contender, count)]
        rates = [median_rate(contender, count) for contender in shown]
        colours = ["#c0392b" if contender.name.startswith("dragoman") else "#7f8c8d" for contender in shown]
        bars = panel.barh([contender.name for contender in shown][::-1], rates[::-1], color=colours[::-1])
        panel.bar_label(bars, fmt="%.0f", padding=3)
        panel.set_title(f"output tokens/s, {count} client{'s' if count > 1 else ''}")
        panel.margins(x=0.15)
    figure.tight_layout()
    figure.savefig(target, dpi=110)


def contenders_of(given: argparse.Namespace, stack: ExitStack, logs: Path) -> tuple[list[Contender], list[str]]:
    """Start every server; who runs, and who is not installed."""
    workload = Workload(given.prompt_tokens, given.output_tokens)
    top = max(given.clients)
    blocks_gb = 4.0
    servers = [peers.dragoman_server(given.model, "--kv-cache-gb", str(blocks_gb), "--max-num-seqs", str(top))]
    servers[0] = peers.Server("dragoman (int8)", servers[0].command, servers[0].port, "openai", "/ping")
    if given.int4:
        int4 = peers.dragoman_server(given.model, "--dtype", "int4", "--kv-cache-gb", str(blocks_gb), port=18083)
        servers.append(peers.Server("dragoman (int4)", int4.command, int4.port, "openai", "/ping"))
    wanted: dict[str, peers.Server | None] = {"vLLM": peers.vllm_server(given.peers, given.model)}
    for number, name in enumerate(("Q8_0", "Q4_0")):
        file = given.model / f"model-{name}.gguf"
        found = peers.llamacpp_server(given.peers, file, top, port=18084 + number) if file.exists() else None
        wanted[f"llama.cpp ({name})"] = found
    missing = [name for name, server in wanted.items() if server is None]
    servers += [server for server in wanted.values() if server is not None]
    contenders = []
    for server in servers:
        contender = http_contender(server, workload)
        contender.start_s = stack.enter_context(peers.started(server, logs / f"{server.port}.log"))
        contenders.append(contender)
        say(f"{server.name} is ready after {contender.start_s:.1f} s")
    shape = ["--prompt-tokens", str(given.prompt_tokens), "--output-tokens", str(given.output_tokens)]
    loop = [sys.executable, "-m", "benchmarks.serving.kernel_loop", str(given.model), *shape]
    contenders.append(process_contender("bare kernel loop (int8)", loop))
    genai = peers.python_of(given.peers, "genai")
    gguf = given.model / "model-Q8_0.gguf"
    if genai.exists() and gguf.exists():
        command = [str(genai), "-m", "benchmarks.serving.genai_loop", str(gguf), *shape]
        contenders.append(process_contender("OpenVINO GenAI (Q8_0, no HTTP)", command))
    else:
        missing.append("OpenVINO GenAI")
    return contenders, missing


def main() -> None:
    """Measure, print the table, write what was asked for; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="made by benchmarks.serving.model --gguf")
    parser.add_argument("--peers", type=Path, default=peers.DEFAULT_ROOT)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--int4", action="store_true", help="also measure int4 weights")
    parser.add_argument("--output", type=Path, help="write the JSON here too")
    parser.add_argument("--plot", type=Path, help="write a PNG")
    given = parser.parse_args()
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contenders, missing = contenders_of(given, stack, logs)
        measure_all(contenders, given)
    report: dict[str, Any] = {"missing": missing, "rounds": given.rounds, "requests": given.requests, "contenders": []}
    for contender in contenders:
        runs = {n: [r if isinstance(r, float) else asdict(r) for r in own] for n, own in contender.runs.items()}
        report["contenders"].append({"name": contender.name, "start_s": contender.start_s, "runs": runs})
    print(table(contenders, given.clients, missing))
    line = json.dumps(report)
    if given.output:
        given.output.write_text(line + "\n")
    if given.plot:
        plot(contenders, given.clients, given.plot)
    print(line)


if __name__ == "__main__":
    main()
