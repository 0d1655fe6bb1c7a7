"""The comparison of plans with a server: what it predicts, and how it tells the difference."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.plan_check import Check, Numbers, measure, predict, summary, table
from benchmarks.serving.load import LoadFailed
from dragoman.plan.workload import Workload
from tests.benchmarks.test_load import HEAD, THREE_PIECES, Served, chunk
from tests.plan.replicas import COSTS, replica

MEASURED = Numbers(100.0, 50.0, 80.0, 10.0, 20.0)
PREDICTED = Numbers(110.0, 50.0, 60.0, 10.0, 19.0)


def test_a_prediction_is_what_the_simulation_comes_to() -> None:
    asked = Workload(rate=2.0, prompt_tokens=16, output_tokens=10, num_requests=30)
    found = predict(replica(), COSTS, asked)
    assert found == predict(replica(), COSTS, asked)
    assert found.tokens_per_s == pytest.approx(20, rel=0.3)
    assert 10 < found.itl_ms_p50 <= found.itl_ms_p99
    assert found.ttft_ms_p50 <= found.ttft_ms_p99


def test_deviations_are_relative_to_what_was_measured() -> None:
    check = Check(1.0, 0.3, MEASURED, PREDICTED, by_log=MEASURED)
    assert list(check.deviations().values()) == pytest.approx([0.1, 0.0, -0.25, 0.0, -0.05])
    assert summary([check])["within_goal"] == pytest.approx(4 / 5)
    assert set(check.deviations_by_log().values()) == {0.0}
    assert "| 1 | 30% | ttft_ms_p99 | 80 | 60 | -25% | 80 | +0% |" in table([check]).splitlines()


def measured(answer: bytes) -> Numbers:
    async def serve() -> Numbers:
        async with Served(answer).listening() as served:
            asked = Workload(rate=100.0, prompt_tokens=4, output_tokens=3, num_requests=5)
            return await asyncio.to_thread(measure, served.url, asked, 100)

    return asyncio.run(serve())


def test_a_server_is_measured_by_its_streams() -> None:
    found = measured(HEAD + THREE_PIECES + b"0\r\n\r\n")
    assert found.tokens_per_s > 0
    assert 0 < found.ttft_ms_p50 <= found.ttft_ms_p99


def test_a_run_with_failures_says_nothing() -> None:
    with pytest.raises(LoadFailed):
        measured(HEAD + chunk(b'data: {"error": "no"}\n\n') + b"0\r\n\r\n")
