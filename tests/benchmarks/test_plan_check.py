"""The comparison of plans with a server: what it predicts, what it measures in turns, and how it tells the difference."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import msgspec
import pytest

from benchmarks.plan_check import Check, Seen, Turns, kept, measure, predict, summary, table, take_turns, together
from benchmarks.serving.load import LoadFailed
from dragoman.engine.rolling.forward.runner import StepWork
from dragoman.engine.rolling.step_log import LoggedStep
from dragoman.tools.plan.calibrate import Answer, Asked, Cases
from dragoman.tools.plan.simulate import RequestTimes
from dragoman.tools.plan.workload import Workload
from tests.benchmarks.test_load import HEAD, THREE_PIECES, Served, chunk
from tests.plan.replicas import COSTS, replica

ASKED = Workload(rate=2.0, prompt_tokens=16, output_tokens=10, num_requests=30)
GOOD = HEAD + THREE_PIECES + b"0\r\n\r\n"


def check(rate: float, measured_s: Sequence[float], *simulated_s: Sequence[float]) -> Check:
    """Of first tokens that took so long, the second ones 0.1 seconds later; the first request came at 0."""

    def seen(firsts_s: Sequence[float]) -> Seen:
        return Seen.of([RequestTimes(0.0, [first_s, first_s + 0.1]) for first_s in firsts_s])

    return Check(rate, rate / 10, seen(measured_s), [seen(firsts_s) for firsts_s in simulated_s])


@pytest.mark.full("simulates minutes of service; tests/plan simulates shorter ones")
def test_a_prediction_is_what_the_simulations_of_the_pieces_come_to() -> None:
    pieces = [replace(ASKED, seed=seed) for seed in range(3)]
    runs = predict(replica(), COSTS, pieces)
    assert runs == predict(replica(), COSTS, pieces)
    for run in runs:
        numbers = run.numbers()
        assert len(run.first_s) == 60  # the first piece warms up
        assert numbers.tokens_per_s == pytest.approx(20, rel=0.3)
        assert 10 < numbers.itl_ms_p50 <= numbers.itl_ms_p99
        assert numbers.ttft_ms_p50 <= numbers.ttft_ms_p99


def test_slow_steps_make_simulations_differ() -> None:
    uneven = msgspec.structs.replace(COSTS, slowness=tuple([(0.01, 1.0)] * 200 + [(0.02, 2.0)] * 40))
    runs = predict(replica(), uneven, [ASKED, ASKED])
    assert len({run.span_s for run in runs}) > 1


def test_deviations_are_relative_to_what_was_measured() -> None:
    found = check(3.0, [0.1, 0.4], [0.1, 0.3], [0.1, 0.4])
    assert found.deviations()["ttft_ms_p99"] == pytest.approx(0.35 / 0.4 - 1)
    assert found.deviations()["itl_ms_p50"] == pytest.approx(0.0)
    assert found.deviations()["tokens_per_s"] == pytest.approx((0.5 / 0.4 + 1) / 2 - 1)
    assert summary([found])["within_goal"] == 1
    assert "| 3 | 30% | 2 | ttft_ms_p99 | 400 | 350 | -12% | 300 to 400 |" in table([found]).splitlines()
    assert summary([check(3.0, [0.4], [0.2])])["within_goal"] == pytest.approx(2 / 5)


def test_runs_of_the_same_rate_are_told_as_one(tmp_path: Path) -> None:
    first, other, second = check(3.0, [0.1], [0.2]), check(1.0, [0.1], [0.1]), check(3.0, [0.5], [0.4])
    assert kept(tmp_path / "seen", [first]) == [first]
    found = together(kept(tmp_path / "seen", [other, second]))
    assert [one.rate for one in found] == [1.0, 3.0]
    assert (found[1].measured.first_s, found[1].simulated[0].first_s) == ([0.1, 0.5], [0.2, 0.4])
    assert found[1].measured.span_s == pytest.approx(0.2 + 0.6)


class OpenService:
    """Answers at once; `asked_s`: when it was asked."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []

    async def ask(self, prompt_tokens: int, output_tokens: int) -> Answer:
        """See `calibrate.Service`."""
        self.asked_s.append(perf_counter())
        await asyncio.sleep(0)
        return Answer(self.asked_s[-1], [perf_counter()] * output_tokens)


def taken() -> tuple[Turns, OpenService]:
    """Turns of two pieces, behind one that warms up."""
    cases = replace(Cases.of(replica(), 16, 3), clients_s=0.01)
    service = OpenService()
    warm = Workload(rate=500.0, prompt_tokens=4, output_tokens=3, num_requests=5)

    async def serve() -> Turns:
        async with Served(GOOD).listening() as served:
            pieces = [warm, replace(warm, num_requests=4), replace(warm, num_requests=4)]
            return await take_turns(service, cases, served.url, pieces, 100)

    return asyncio.run(serve()), service


def test_costs_are_asked_for_between_the_pieces() -> None:
    turns, service = taken()
    assert len(turns.measured.first_s) == 8
    assert len(turns.spans) == 2
    for begin_s, end_s in turns.spans:
        assert any(begin_s <= asked_s <= end_s for asked_s in service.asked_s)
    assert all(any(begin_s <= asked_s <= end_s for begin_s, end_s in turns.spans) for asked_s in service.asked_s)
    assert len(turns.asked.in_service) == 2 * len(Cases.of(replica(), 16, 3).clients)


def test_no_step_of_the_load_counts_for_the_costs(tmp_path: Path) -> None:
    """They took ten times as long."""
    steps = [
        LoggedStep(begin_s, 0.5 if 10 <= begin_s < 20 else 0.05, StepWork(1, 1, (10.0,), (0.0,)))
        for begin_s in range(30)
    ]
    (tmp_path / "steps").write_bytes(b"".join(msgspec.json.encode(step) + b"\n" for step in steps))
    turns = Turns((ASKED, ASKED), Seen([], [], 0, 1.0), Asked(), ((0.0, 9.5), (20.0, 29.5)))
    assert turns.costs(tmp_path / "steps").seconds(steps[0].work) == pytest.approx(0.05, rel=0.01)


def measured(answer: bytes) -> Seen:
    async def serve() -> Seen:
        async with Served(answer).listening() as served:
            return await measure(served.url, Workload(100.0, prompt_tokens=4, output_tokens=3, num_requests=5), 100)

    return asyncio.run(serve())


def test_a_server_is_measured_by_its_streams() -> None:
    found = measured(GOOD)
    assert (found.num_tokens, len(found.first_s), len(found.gaps_s)) == (15, 5, 10)
    assert found.numbers().tokens_per_s > 0
    assert 0 < found.numbers().ttft_ms_p50 <= found.numbers().ttft_ms_p99


def test_a_run_with_failures_says_nothing() -> None:
    with pytest.raises(LoadFailed, match="5 of 5 requests failed"):
        measured(HEAD + chunk(b'data: {"error": "no"}\n\n') + b"0\r\n\r\n")
