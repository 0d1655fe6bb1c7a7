"""What a point of a sweep says of its requests, computed from samples with known times."""

from __future__ import annotations

import pytest

from dragoman.tools.bench.answer import Sample
from dragoman.tools.bench.measures import Failures, measures, spread
from dragoman.tools.percentiles import percentile


def answered(due_s: float, *piece_times_s: float, tokens: int | None = None, prompt: int | None = None) -> Sample:
    """Sent when it was due; it ends with its last piece."""
    return Sample(due_s, due_s, list(piece_times_s), piece_times_s[-1], prompt, tokens)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.9, 90), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_percentiles_by_nearest_rank(share: float, expected: int) -> None:
    assert percentile(range(100, 0, -1), share) == expected
    assert percentile([], share) == 0.0


def test_a_spread_has_mean_percentiles_and_maximum() -> None:
    found = spread([4.0, 1.0, 2.0, 3.0])
    assert found is not None
    assert (found.mean, found.p50, found.p90, found.p99, found.max) == (2.5, 2.0, 4.0, 4.0, 4.0)
    assert spread([]) is None


def test_rates_count_what_was_answered_over_the_whole_time() -> None:
    samples = [answered(0.0, 1.0, 2.0, tokens=8, prompt=16), answered(1.0, 2.0, 4.0, tokens=12, prompt=24)]
    found = measures([*samples, Sample(0.0, 0.0, [0.5], 1.0, 16, 100, "timeout", "late")], 4.0)
    assert (found.answered, found.failed) == (2, 1)
    assert found.requests_per_s == 0.5
    assert found.output_tokens_per_s == 5.0
    assert found.total_tokens_per_s == 15.0
    assert (found.prompt_tokens, found.output_tokens, found.pieces) == (20.0, 10.0, 2.0)
    assert found.counted_by == "usage"


def test_latencies_of_single_requests() -> None:
    found = measures([answered(1.0, 1.5, 2.0, 4.0, tokens=6)], 4.0)
    assert found.time_to_first_token_s is not None
    assert found.time_per_token_s is not None
    assert found.gap_s is not None
    assert found.latency_s is not None
    assert found.time_to_first_token_s.p50 == 0.5
    assert found.time_per_token_s.p50 == 0.5  # 2.5 s for the five tokens behind the first
    assert (found.gap_s.p50, found.gap_s.max) == (0.5, 2.0)
    assert found.latency_s.p50 == 3.0


def test_a_request_that_left_late_waited_since_it_was_due() -> None:
    late = Sample(due_s=1.0, sent_s=3.0, piece_times_s=[4.0], end_s=5.0)
    found = measures([late], 5.0)
    assert found.time_to_first_token_s is not None
    assert found.latency_s is not None
    assert (found.time_to_first_token_s.p50, found.latency_s.p50) == (3.0, 4.0)


def test_pieces_stand_for_tokens_where_the_server_tells_none() -> None:
    found = measures([answered(0.0, 1.0, 2.0, 3.0), answered(0.0, 1.0, 2.0, tokens=9)], 2.0)
    assert (found.counted_by, found.output_tokens_per_s) == ("both", 6.0)
    assert found.total_tokens_per_s is None
    assert measures([answered(0.0, 1.0, 2.0, 3.0)], 1.0).counted_by == "pieces"


@pytest.mark.parametrize("is_streamed", [True, False])
def test_answers_that_come_whole_tell_no_tokens(is_streamed: bool) -> None:
    found = measures([answered(0.0, 1.0)], 1.0, is_streamed=is_streamed)
    assert (found.counted_by, found.output_tokens_per_s, found.time_per_token_s) == ("nobody", None, None)
    assert (found.time_to_first_token_s is None) == (not is_streamed)


def test_failures_are_grouped_with_the_first_message_of_each() -> None:
    failed = [Sample(0.0, 0.0, end_s=1.0, error=kind, message=words) for kind, words in
              [("HTTP 503", "full"), ("timeout", "late"), ("HTTP 503", "still full")]]  # fmt: skip
    found = measures(failed, 1.0)
    assert found.failures == [Failures("HTTP 503", 2, "full"), Failures("timeout", 1, "late")]
    assert (found.answered, found.requests_per_s, found.latency_s, found.output_tokens) == (0, 0.0, None, None)


@pytest.mark.parametrize(
    ("bounds", "good"),
    [
        ({"ttft": 0.5}, 2),
        ({"ttft": 0.4}, 1),
        ({"itl": 0.5}, 1),
        ({"ttft": 0.5, "tpot": 0.5, "e2e": 1.0}, 1),
        ({"e2e": 0.1}, 0),
    ],
)
def test_goodput_is_the_share_of_all_requests_that_keep_every_bound(bounds: dict[str, float], good: int) -> None:
    quick, slow = answered(0.0, 0.25, 0.75, tokens=2), answered(0.0, 0.5, 1.5, tokens=2)
    failed = Sample(0.0, 0.0, [0.1], 0.1, error="broken off")
    found = measures([quick, slow, failed], 2.0, bounds=bounds)
    assert found.goodput == pytest.approx(good / 3)
    assert found.good_requests_per_s == good / 2
    assert measures([quick], 1.0).goodput is None
