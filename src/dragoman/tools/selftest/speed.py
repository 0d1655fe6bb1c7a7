"""Checks the speed of steps against this machine's memory: a step of one row reads all weights once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.forward.runner import ModelRunner
from dragoman.tools.selftest.answers import StepLoop, request
from dragoman.tools.selftest.report import Check

ROWS = 8
STEPS = 12
LEAST_WEIGHTS = 256 << 20  # bytes: caches hold much of smaller models, and other costs dominate their steps
LEAST_SHARE = 0.2  # share of the bandwidth that a step of one row must reach
MOST_ROW_COST = 1.0  # cost of a further row, in steps of one row: above, batching would lose time

_GIGABYTE = 1e9


def speed_checks(
    runner: ModelRunner, limits: RollingConfig, prompt: Sequence[int], weights: int, bandwidth: float
) -> Iterator[Check]:
    """Checks of rows' cost, and of the `bandwidth` (bytes/s) of a step over `weights` bytes (0 = it does not read all)."""
    one_s = step_seconds(runner, limits, prompt, 1)
    yield bandwidth_check(one_s, weights, bandwidth)
    rows = min(ROWS, limits.max_num_seqs)
    if rows > 1:
        yield rows_check(one_s, step_seconds(runner, limits, prompt, rows), rows)


def bandwidth_check(step_s: float, weights: int, bandwidth: float) -> Check:
    name, found = "step of one row", f"{1000 * step_s:.2f} ms"
    memory = f"memory reads {bandwidth / _GIGABYTE:.1f} GB/s"
    if not weights:
        return Check(name, "skipped", found, why=f"a step does not read all weights; {memory}")
    if weights < LEAST_WEIGHTS:
        return Check(name, "skipped", found, why=f"the model is too small to be bound by memory; {memory}")
    share = weights / step_s / bandwidth
    found += f", {weights / step_s / _GIGABYTE:.1f} GB/s of {bandwidth / _GIGABYTE:.1f}"
    is_ok = share >= LEAST_SHARE
    why = "steps are much slower than memory: fewer threads than cores, or a processor that is busy?"
    return Check.judged(name, is_ok, found, f"at least {LEAST_SHARE:.0%}", why)


def rows_check(one_s: float, many_s: float, num_rows: int) -> Check:
    cost = (many_s - one_s) / one_s / (num_rows - 1)
    is_ok = cost <= MOST_ROW_COST
    found = f"{cost:.2f} of the first, for {num_rows} rows"
    why = "requests are answered faster one after the other than together: lower max_num_seqs"
    return Check.judged("each further row", is_ok, found, f"at most {MOST_ROW_COST:g}", why)


def step_seconds(runner: ModelRunner, limits: RollingConfig, prompt: Sequence[int], num_rows: int) -> float:
    """The median seconds of a step with `num_rows` decoding sequences, without the first steps."""
    times: list[float] = []
    loop = StepLoop(runner, limits)
    try:
        requests = [request(str(i), prompt, 2 * STEPS, i) for i in range(num_rows)]
        loop.answers(requests, lambda seconds, rows: times.append(seconds) if rows == num_rows else None)
    finally:
        loop.close()
    return median(times[-STEPS:])
