"""Compares what `dragoman plan` predicts with what a server does: throughput, time to first token, time between tokens.

Does: measure the costs of steps (by `dragoman plan` itself), start a server, send it Poisson arrivals over HTTP at shares of
the rate that is predicted to saturate it, simulate the same arrivals, over these costs and over those that the server's step
log of that time comes to: where the two differ, the machine was slower or faster than when its costs were measured. A table,
and one last JSON line. Does not: change a prediction by what clients have measured. Run by hand, on an otherwise idle
machine:

    python -m benchmarks.serving.model MODEL
    python -m benchmarks.plan_check --model MODEL --costs COSTS.json

The clients compute on the same machine, as those do that the costs are measured with: what they take is part of what is
planned for. Without --model it is the bundled demo model, whose steps are so short that HTTP counts as much: that only
shows that the tools work. Words that are not known here are the server's options, and the plan's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.serving import load
from benchmarks.serving.processes import Server, ServerProcess, free_port
from dragoman.cli.arguments import read_arguments
from dragoman.cli.plan.command import replica_for
from dragoman.config.resolve import demo_model_dir
from dragoman.config.several import resolve_all
from dragoman.config.sources import environment
from dragoman.models.config import read_json
from dragoman.plan.calibrate import costs_of, logged_steps
from dragoman.plan.costs import StepCosts, read_costs
from dragoman.plan.replica import Replica
from dragoman.plan.router import LeastOutstanding
from dragoman.plan.simulate import latencies, simulate
from dragoman.plan.sizing import percentile
from dragoman.plan.workload import Workload, arrivals

GOAL = 0.15
_NUM_SIMULATIONS = 5


@dataclass(frozen=True, slots=True)
class Numbers:
    """What is compared. Milliseconds."""

    tokens_per_s: float
    ttft_ms_p50: float
    ttft_ms_p99: float
    itl_ms_p50: float
    itl_ms_p99: float


@dataclass(frozen=True, slots=True)
class Check:
    """One rate: requests a second, its share of saturation, what was measured and what was predicted.

    `predicted`: over the costs that were measured before; `by_log`: over those of the server's step log meanwhile.
    """

    rate: float
    share: float
    measured: Numbers
    predicted: Numbers
    by_log: Numbers

    def deviations(self) -> dict[str, float]:
        """How far the prediction is off, relative to what was measured."""
        return _deviations(self.predicted, self.measured)

    def deviations_by_log(self) -> dict[str, float]:
        """How far that by the log is off, likewise."""
        return _deviations(self.by_log, self.measured)


def _deviations(predicted: Numbers, measured: Numbers) -> dict[str, float]:
    found, truth = asdict(predicted), asdict(measured)
    return {name: found[name] / truth[name] - 1 for name in truth}


def predict(replica: Replica, costs: StepCosts, workload: Workload) -> Numbers:
    """What one replica does with the very arrivals that the load generator sends: the mean of some simulations.

    They differ in which of the measured slow steps come when, which a single 99th percentile depends on.
    """
    known = costs.slowness
    begins = [number * len(known) // _NUM_SIMULATIONS for number in range(_NUM_SIMULATIONS if known else 1)]
    runs = [
        asdict(_simulated(replica, msgspec.structs.replace(costs, slowness=(*known[begin:], *known[:begin])), workload))
        for begin in begins
    ]
    return Numbers(**{name: statistics.mean(run[name] for run in runs) for name in runs[0]})


def _simulated(replica: Replica, costs: StepCosts, workload: Workload) -> Numbers:
    run = simulate(replica, costs, workload, arrivals(workload), (LeastOutstanding(), 1))
    first, gaps = latencies(run)
    begin_s = run.times[0].arrival_s
    return Numbers(
        tokens_per_s=workload.num_requests * workload.output_tokens / (run.duration_s - begin_s),
        ttft_ms_p50=1000 * percentile(first, 0.5),
        ttft_ms_p99=1000 * percentile(first, 0.99),
        itl_ms_p50=1000 * percentile(gaps, 0.5),
        itl_ms_p99=1000 * percentile(gaps, 0.99),
    )


def measure(url: str, workload: Workload, vocab_size: int) -> Numbers:
    """What the server's clients see. Raises: load.LoadFailed if any request fails."""
    asked = load.Workload(workload.prompt_tokens, workload.output_tokens, seed=workload.seed, vocab_size=vocab_size)
    sending = load.open_loop(url, load.FORMS["openai"], asked, workload.rate, workload.num_requests)
    seen = load.summarize(asyncio.run(sending), workload.output_tokens)
    if seen.num_errors:
        raise load.LoadFailed(f"{seen.num_errors} of {seen.num_requests} requests failed")
    return Numbers(seen.output_tokens_per_s, seen.ttft_ms_p50, seen.ttft_ms_p99, seen.itl_ms_p50, seen.itl_ms_p99)


def saturating_rate(asked: argparse.Namespace, words: Sequence[str]) -> float:
    """Requests a second that one replica carries, by `dragoman plan`, which measures the costs unless they are there."""
    command = [sys.executable, "-m", "dragoman", "plan", str(asked.model), "--rate", "1", "--replicas", "1", "--json"]
    command += ["--prompt", str(asked.prompt_tokens), "--output", str(asked.output_tokens)]
    command += ["--costs", str(asked.costs), *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(json.loads(done.stdout)["requests_per_s"])


def check(asked: argparse.Namespace, words: Sequence[str], logs: Path) -> list[Check]:
    """All rates, one after the other, on one server."""
    saturating = saturating_rate(asked, words)
    config = resolve_all(read_arguments([str(asked.model), *words]).givens, environment(), demo_model_dir()).models[0]
    replica, costs = replica_for(config), read_costs(asked.costs)
    vocab_size = read_json(config.model_dir / "config.json")["vocab_size"]
    command = [sys.executable, "-m", "dragoman", "serve", str(asked.model), "--name", "bench"]
    step_log = logs / "steps"
    command += ["--host", "127.0.0.1", "--port", str(asked.port), *words, "--step-log", str(step_log)]
    found = []
    with ServerProcess(Server("plan-check", command, asked.port, "openai", ready_path="/ping"), logs) as server:
        seed = asked.seed + len(asked.shares)
        warm = Workload(saturating, asked.prompt_tokens, asked.output_tokens, min(asked.requests // 2, 40), seed=seed)
        measure(server.url, warm, vocab_size)
        for number, share in enumerate(asked.shares):  # each with prompts of its own, so that none is cached
            seed = asked.seed + number
            workload = Workload(share * saturating, asked.prompt_tokens, asked.output_tokens, asked.requests, seed=seed)
            begin_s = time.perf_counter()
            measured = measure(server.url, workload, vocab_size)
            found.append((share, workload, measured, (begin_s, time.perf_counter())))
    steps, checks = logged_steps(step_log), []
    for share, workload, measured, (begin_s, end_s) in found:
        meanwhile = [step for step in steps if begin_s <= step.begin_s <= end_s]
        logged = msgspec.structs.replace(costs_of(meanwhile), http_s=costs.http_s)
        by_costs, by_log = (predict(replica, one, workload) for one in (costs, logged))
        checks.append(Check(workload.rate, share, measured, by_costs, by_log))
    return checks


def table(checks: Sequence[Check]) -> str:
    """The checks as text: a row for each number."""
    lines = ["| requests/s | of saturated | what | measured | predicted | off | by the server's own log | off |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for one in checks:
        measured, predicted, by_log = asdict(one.measured), asdict(one.predicted), asdict(one.by_log)
        offs_by_log = one.deviations_by_log()
        for name, off in one.deviations().items():
            numbers = f"{measured[name]:.4g} | {predicted[name]:.4g} | {off:+.0%}"
            logged = f"{by_log[name]:.4g} | {offs_by_log[name]:+.0%}"
            lines.append(f"| {one.rate:.3g} | {one.share:.0%} | {name} | {numbers} | {logged} |")
    return "\n".join(lines) + "\n"


def summary(checks: Sequence[Check]) -> dict[str, Any]:
    """For the last line: all numbers, and the share of them that is within the goal."""
    offs = [abs(off) for one in checks for off in one.deviations().values()]
    both = [(one.deviations(), one.deviations_by_log()) for one in checks]
    rows = [
        {**asdict(one), "deviations": off, "deviations_by_log": by_log}
        for one, (off, by_log) in zip(checks, both, strict=True)
    ]
    return {"checks": rows, "goal": GOAL, "within_goal": sum(off <= GOAL for off in offs) / len(offs)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="Compares a plan's predictions with a server over HTTP.")
    parser.add_argument("--model", type=Path, default=demo_model_dir())
    parser.add_argument("--costs", type=Path, help="of the model's steps; measured if there is no such file")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=150, help="at each rate")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.3, 0.6, 0.85], help="of the saturating rate")
    parser.add_argument("--logs", type=Path, help="a directory that keeps the logs and the costs")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and prompts: another one for every round")
    parser.add_argument("--port", type=int, default=free_port())
    asked, words = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        logs = asked.logs or Path(directory)
        logs.mkdir(parents=True, exist_ok=True)
        asked.costs = asked.costs or logs / "costs.json"
        checks = check(asked, words, logs)
    sys.stdout.write(table(checks) + json.dumps(summary(checks)) + "\n")


if __name__ == "__main__":
    main()
