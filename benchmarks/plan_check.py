"""Compares what `dragoman plan` predicts with what a server does: throughput, time to first token, time between tokens.

Does: start one server with a step log; at shares of the rate that saturates it, have its costs measured as the plan does,
in parts, and after each part send it a piece of Poisson arrivals over HTTP; simulate the same arrivals over the costs that
the parts come to. A table, and one last JSON line. Does not: let a step of the load count for the costs. Run by hand, on an
otherwise idle machine:

    python -m benchmarks.serving.model MODEL
    python -m benchmarks.plan_check --model MODEL

In turns, because a machine with neighbours is slower in one minute than in the next, and that is not what is checked:
whatever happens to it happens to the measured costs and to the load alike. The clients compute on the same machine, while
costs are measured as well: what they take is part of what is planned for. Without --model it is the bundled demo model,
whose steps are so short that HTTP counts as much: that only shows that the tools work. Words that are not known here are the
server's options, and the plan's; nobody guesses tokens, as a plan does not simulate that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from benchmarks.serving import load
from dragoman.cli.arguments import read_arguments
from dragoman.cli.plan_run import HttpService, replica_for, served_model
from dragoman.config.resolve import demo_model_dir
from dragoman.config.several import resolve_all
from dragoman.config.sources import environment
from dragoman.tools.percentiles import percentile
from dragoman.tools.plan.calibrate import Asked, Cases, Service, Stage, ask_all, costs_of, logged_steps, stages_of
from dragoman.tools.plan.costs import StepCosts
from dragoman.tools.plan.router import LeastOutstanding
from dragoman.tools.plan.simulate import Replica, RequestTimes, latencies, simulate
from dragoman.tools.plan.sizing import Planner
from dragoman.tools.plan.workload import Arrival, Workload, arrivals

GOAL = 0.15
_NUM_SIMULATIONS = 8
_WARM_REQUESTS = 30
_PAUSE_S = 1000.0  # between simulated pieces, so that none finds another's requests


@dataclass(frozen=True, slots=True)
class Numbers:
    """What is compared. Milliseconds."""

    tokens_per_s: float
    ttft_ms_p50: float
    ttft_ms_p99: float
    itl_ms_p50: float
    itl_ms_p99: float


class Seen(msgspec.Struct, frozen=True):
    """What clients saw: seconds to first tokens, and between tokens; so many tokens, in so many seconds."""

    first_s: list[float]
    gaps_s: list[float]
    num_tokens: int
    span_s: float

    @classmethod
    def of(cls, times: Sequence[RequestTimes]) -> Seen:
        """Of the requests of a piece, at least one."""
        begin_s, end_s = min(one.arrival_s for one in times), max(one.token_s[-1] for one in times)
        return cls(*latencies(times), sum(len(one.token_s) for one in times), end_s - begin_s)

    @classmethod
    def together(cls, seen: Iterable[Seen]) -> Seen:
        """Of several pieces."""
        pieces = list(seen)
        first_s = [wait for one in pieces for wait in one.first_s]
        gaps_s = [gap for one in pieces for gap in one.gaps_s]
        return cls(first_s, gaps_s, sum(one.num_tokens for one in pieces), sum(one.span_s for one in pieces))

    def numbers(self) -> Numbers:
        """What is compared of it."""
        waits = [1000 * percentile(values, share) for values in (self.first_s, self.gaps_s) for share in (0.5, 0.99)]
        return Numbers(self.num_tokens / self.span_s, *waits)


class Check(msgspec.Struct, frozen=True):
    """One rate: requests a second, its share of the saturating rate by the costs of that time, and what was seen.

    `simulated`: by some simulations, which differ in which of the measured slow steps come when: a single 99th percentile
    depends on that.
    """

    rate: float
    share: float
    measured: Seen
    simulated: list[Seen]

    def predicted(self) -> Numbers:
        """What is to be expected: the mean of the simulations."""
        runs = [asdict(run.numbers()) for run in self.simulated]
        return Numbers(**{name: mean(run[name] for run in runs) for name in runs[0]})

    def deviations(self) -> dict[str, float]:
        """How far the prediction is off, relative to what was measured."""
        found, truth = asdict(self.predicted()), asdict(self.measured.numbers())
        return {name: found[name] / truth[name] - 1 for name in truth}


def together(checks: Sequence[Check]) -> list[Check]:
    """The checks of equal rates as one, in the order of their rates."""
    found = []
    for rate in sorted({one.rate for one in checks}):
        alike = [one for one in checks if one.rate == rate]
        runs = [Seen.together(runs) for runs in zip(*(one.simulated for one in alike), strict=True)]
        measured = Seen.together(one.measured for one in alike)
        found.append(Check(rate, mean(one.share for one in alike), measured, runs))
    return found


def predict(replica: Replica, costs: StepCosts, pieces: Sequence[Workload]) -> list[Seen]:
    """What one replica does with the arrivals of the pieces: some simulations, over slow steps from another one on.

    The first piece is what warms it up, as it did the server, and is not counted: a pacer has to learn what steps take.
    """
    known = costs.slowness
    begins = [number * len(known) // _NUM_SIMULATIONS for number in range(_NUM_SIMULATIONS)]
    turned = [msgspec.structs.replace(costs, slowness=(*known[begin:], *known[:begin])) for begin in begins]
    return [_simulated(replica, one, pieces) for one in turned]


def _simulated(replica: Replica, costs: StepCosts, pieces: Sequence[Workload]) -> Seen:
    coming: list[Arrival] = []
    ends = []
    for workload in pieces:
        begin_s = coming[-1].time_s + _PAUSE_S if coming else 0.0
        coming += [Arrival(len(coming) + one.number, begin_s + one.time_s) for one in arrivals(workload)]
        ends.append(len(coming))
    times = simulate(replica, costs, pieces[0], coming, (LeastOutstanding(), 1)).times
    return Seen.together(Seen.of(times[begin:end]) for begin, end in pairwise(ends))


async def measure(url: str, workload: Workload, vocab_size: int) -> Seen:
    """What the server's clients see. Raises: load.LoadFailed if any request fails."""
    asked = load.Workload(workload.prompt_tokens, workload.output_tokens, seed=workload.seed, vocab_size=vocab_size)
    answers = await load.open_loop(url, load.FORMS["openai"], asked, workload.rate, workload.num_requests)
    errors = [answer.error for answer in answers if answer.error]
    if errors:
        raise load.LoadFailed(f"{len(errors)} of {len(answers)} requests failed; the first: {errors[0]}")
    return Seen.of([RequestTimes(answer.start_s, answer.token_times_s) for answer in answers])


@dataclass(frozen=True, slots=True)
class Turns:
    """What was done at a rate: `pieces` of load, which their clients saw as `measured`, and calibration: what was asked, and
    from when to when.
    """

    pieces: tuple[Workload, ...]
    measured: Seen
    asked: Asked
    spans: tuple[tuple[float, float], ...]

    def costs(self, step_log: Path) -> StepCosts:
        """By the steps of the calibration alone."""
        steps = logged_steps(step_log)
        mine = [step for step in steps if any(begin_s <= step.begin_s <= end_s for begin_s, end_s in self.spans)]
        return costs_of(mine, self.asked)


async def take_turns(service: Service, cases: Cases, url: str, pieces: Sequence[Workload], vocab_size: int) -> Turns:
    """The first piece to warm up, then a part of the calibration before each of the others."""
    await measure(url, pieces[0], vocab_size)
    stages, asked = stages_of(service, cases)
    parts = len(pieces) - 1
    measured, spans = [], []
    for number, workload in enumerate(pieces[1:]):
        spans.append(await _calibrate(stages[number * len(stages) // parts : (number + 1) * len(stages) // parts]))
        measured.append(await measure(url, workload, vocab_size))
    return Turns(tuple(pieces), Seen.together(measured), asked, tuple(spans))


async def _calibrate(stages: Sequence[Stage]) -> tuple[float, float]:
    """From when to when they were measured."""
    begin_s = time.perf_counter()
    for stage in stages:
        await stage()
    return begin_s, time.perf_counter()


def pieces_of(asked: argparse.Namespace, number: int, saturated: float) -> list[Workload]:
    """What warms up, and the load at the share of that number, in pieces; each with prompts of its own, so that none is
    cached.
    """
    seed = 1000 * (asked.seed * len(asked.shares) + number)
    warm = Workload(saturated, asked.prompt_tokens, asked.output_tokens, _WARM_REQUESTS, seed=seed)
    rate, size = asked.shares[number] * saturated, -(-asked.requests // asked.pieces)
    return [warm, *(replace(warm, rate=rate, num_requests=size, seed=seed + 1 + k) for k in range(asked.pieces))]


def check(asked: argparse.Namespace, words: Sequence[str], step_log: Path) -> list[Check]:
    """All shares, one after the other, on one server."""
    words = [str(asked.model), *words, "--name", "bench"]
    config = resolve_all(read_arguments(words).givens, environment(), demo_model_dir()).models[0]
    replica = replica_for(config)
    cases = Cases.of(replica, asked.prompt_tokens, asked.output_tokens)

    def saturating(costs: StepCosts) -> float:
        workload = Workload(1.0, asked.prompt_tokens, asked.output_tokens)
        return Planner(replica, costs, workload, "least-outstanding").carries(1)

    with served_model(words, step_log) as url:
        service = HttpService(url, config.name, replica.vocab_size)
        saturated = asked.saturated
        if saturated is None:
            answered = asyncio.run(ask_all(service, cases, lambda stage, fraction: None))
            saturated = saturating(costs_of(logged_steps(step_log), answered))
        taken = [
            asyncio.run(take_turns(service, cases, url, pieces_of(asked, number, saturated), replica.vocab_size))
            for number in range(len(asked.shares))
        ]
    checks = []
    for turns in taken:
        costs, rate = turns.costs(step_log), turns.pieces[-1].rate
        checks.append(Check(rate, rate / saturating(costs), turns.measured, predict(replica, costs, turns.pieces)))
    return checks


def table(checks: Sequence[Check]) -> str:
    """The checks as text: a row for each number."""
    lines = ["| requests/s | of saturated | requests | what | measured | predicted | off | simulations |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for one in checks:
        measured, predicted = asdict(one.measured.numbers()), asdict(one.predicted())
        runs = [asdict(run.numbers()) for run in one.simulated]
        for name, off in one.deviations().items():
            among = [run[name] for run in runs]
            numbers = (
                f"{measured[name]:.4g} | {predicted[name]:.4g} | {off:+.0%} | {min(among):.4g} to {max(among):.4g}"
            )
            lines.append(f"| {one.rate:.3g} | {one.share:.0%} | {len(one.measured.first_s)} | {name} | {numbers} |")
    return "\n".join(lines) + "\n"


def summary(checks: Sequence[Check]) -> dict[str, Any]:
    """For the last line: all numbers, and the share of them that is within the goal."""
    rows = [
        {
            "rate": one.rate,
            "share": one.share,
            "measured": asdict(one.measured.numbers()),
            "predicted": asdict(one.predicted()),
            "deviations": one.deviations(),
        }
        for one in checks
    ]
    offs = [abs(off) for one in checks for off in one.deviations().values()]
    return {"checks": rows, "goal": GOAL, "within_goal": sum(off <= GOAL for off in offs) / len(offs)}


def kept(path: Path, checks: Sequence[Check]) -> list[Check]:
    """The checks that the file has from earlier runs, and these, which are put there."""
    with path.open("ab+") as file:
        file.write(b"".join(msgspec.json.encode(one) + b"\n" for one in checks))
        file.seek(0)
        return [msgspec.json.decode(line, type=Check) for line in file]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="Compares a plan's predictions with a server over HTTP.")
    parser.add_argument("--model", type=Path, default=demo_model_dir())
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=270, help="at each rate")
    parser.add_argument("--pieces", type=int, default=6, help="of the load at each rate, and parts of the calibration")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.3, 0.6, 0.85], help="of the saturating rate")
    parser.add_argument("--saturated", type=float, help="that rate, in requests a second; measured first if not told")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and prompts: another one for every run")
    parser.add_argument("--keep", type=Path, help="a file that runs add to; those of the same rates are told as one")
    asked, words = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        checks = check(asked, words, Path(directory) / "steps")
    found = together(kept(asked.keep, checks) if asked.keep else checks)
    sys.stdout.write(table(found) + json.dumps(summary(found)) + "\n")


if __name__ == "__main__":
    main()
