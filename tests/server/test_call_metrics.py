"""What is counted when a call has ended, and what other servers' names tell of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dragoman.engine.base import EngineStats, Health
from dragoman.errors import EngineFailed, InvalidRequest, ServerError
from dragoman.histogram import Histogram
from dragoman.server.observation.metrics import MetricsRegistry
from dragoman.server.observation.record import CallRecord, RequestRecord, SequenceRecord
from dragoman.server.observation.watch import CallMetrics
from dragoman.types import FinishReason
from tests.support.openmetrics import openmetrics_families
from tests.support.tables import table


def request(*sequences: SequenceRecord, **changes: Any) -> RequestRecord:
    """It came at 100 s, was ready at 101 s and waited for 2 s."""
    times: dict[str, Any] = {"begin_s": 100.0, "prepared_s": 101.0, "queue_s": 2.0, **changes}
    return RequestRecord("r", sequences=list(sequences), **times)


def sequence(*event_s: float, num_tokens: int = 0, ended: FinishReason | None = FinishReason.LENGTH) -> SequenceRecord:
    return SequenceRecord(list(event_s), num_tokens or len(event_s), finish_reason=ended)


def metrics_of(*requests: RequestRecord, **changes: Any) -> CallMetrics:
    """After one call."""
    metrics = CallMetrics()
    metrics.observe(
        CallRecord("c", "openai", "/", model="m", requests=list(requests), begin_s=99.0, end_s=111.0, **changes)
    )
    return metrics


def total(metrics: CallMetrics, name: str) -> tuple[int, float]:
    histogram: Histogram = metrics.histogram(f"dragoman_{name}", "m")
    return sum(histogram.counts), histogram.total


def test_a_requests_life_is_told_in_phases() -> None:
    metrics = metrics_of(request(sequence(104.0, 105.0, 110.0)))
    assert total(metrics, "prefill_seconds") == (1, 1.0)
    assert total(metrics, "decode_seconds") == (1, 6.0)
    assert total(metrics, "inference_seconds") == (1, 7.0)
    assert total(metrics, "mean_token_seconds") == (1, 7 / 3)
    assert total(metrics, "longest_completion_tokens") == (1, 3)


def test_of_several_sequences_the_first_output_the_last_one_and_the_longest_count() -> None:
    metrics = metrics_of(request(sequence(105.0, 108.0), sequence(104.0, 106.0, num_tokens=4)))
    assert total(metrics, "prefill_seconds") == (1, 1.0)
    assert total(metrics, "decode_seconds") == (1, 4.0)
    assert total(metrics, "longest_completion_tokens") == (1, 4)
    assert total(metrics, "mean_token_seconds") == (1, 5 / 4)


def test_a_queue_that_is_told_as_too_long_makes_no_negative_time() -> None:
    metrics = metrics_of(request(sequence(102.5, 103.0)))
    assert total(metrics, "prefill_seconds") == (1, 0.0)
    assert total(metrics, "inference_seconds") == (1, 0.5)


def test_what_has_not_begun_has_no_phases_and_what_made_no_token_no_mean() -> None:
    waiting = metrics_of(request(SequenceRecord()), error=EngineFailed("no"))
    assert total(waiting, "prefill_seconds") == total(waiting, "longest_completion_tokens") == (0, 0.0)
    scored = metrics_of(request(SequenceRecord([104.0], 0, finish_reason=FinishReason.LENGTH)))
    assert total(scored, "prefill_seconds") == (1, 1.0)
    assert total(scored, "mean_token_seconds") == (0, 0.0)


ENDED = [sequence(104.0, ended=reason) for reason in FinishReason]


@table(
    ("requests", "changes", "reasons"),
    [
        ([request(*ENDED)], {}, dict.fromkeys(FinishReason, 1)),
        ([request(sequence(104.0)), request(sequence(104.0))], {}, {"length": 2}),
        ([request(sequence(104.0, ended=None), SequenceRecord())], {"is_client_gone": True}, {"abort": 2}),
        ([request(SequenceRecord())], {"error": EngineFailed("no")}, {"abort": 1}),
        ([request(SequenceRecord(), prepared_s=None)], {"error": EngineFailed("no")}, {}),
        ([request(SequenceRecord())], {"error": InvalidRequest("no")}, {}),
    ],
    ids=["every reason", "two prompts", "the client left", "failed", "failed before it was ready", "refused"],
)
def test_sequences_are_counted_by_why_they_ended(
    requests: list[RequestRecord], changes: dict[str, Any], reasons: dict[str, int]
) -> None:
    assert metrics_of(*requests, **changes).finish_reasons("m") == reasons
    assert metrics_of(*requests, **changes).finish_reasons("another") == {}


@table(
    ("error", "is_client_gone", "failures"),
    [
        (None, False, {}),
        (EngineFailed("no"), False, {"engine_failed": 1}),
        (InvalidRequest("no"), False, {"invalid_request": 1}),
        (None, True, {"dropped": 1}),
        (EngineFailed("no"), True, {"dropped": 1}),
    ],
)
def test_a_call_that_does_not_finish_is_one_failure(
    error: ServerError | None, is_client_gone: bool, failures: dict[str, int]
) -> None:
    assert metrics_of(error=error, is_client_gone=is_client_gone).failures("m") == failures


def test_sums_are_over_apis_and_outcomes_of_one_model() -> None:
    metrics = CallMetrics()
    for api, model, error in (
        ("openai", "m", None), ("lmi", "m", None), ("lmi", "m", EngineFailed("no")), ("lmi", "another", None)
    ):  # fmt: skip
        metrics.observe(CallRecord("c", api, "/", model=model, requests=[request(sequence(104.0, 105.0))], error=error))
    assert metrics.count("requests", "m") == 3
    assert metrics.count("finished", "m") == 2
    assert metrics.count("completion", "m") == 6
    assert total(metrics, "prefill_seconds") == (3, 3.0)


def test_other_servers_have_fewer_words_and_tell_them_from_the_beginning() -> None:
    engine = SimpleNamespace(health=lambda: Health(True), stats=EngineStats)
    models: Any = [SimpleNamespace(name="m", engine=engine)]
    for metrics, expected in (
        (CallMetrics(), {"stop": 0, "length": 0, "repetition": 0, "abort": 0}),
        (metrics_of(request(*ENDED)), {"stop": 3, "length": 1, "repetition": 1, "abort": 1}),
    ):
        text = MetricsRegistry(lambda: models, metrics, ("vllm", "tgi")).render(as_openmetrics=True).decode()
        found = [one for family in openmetrics_families(text) for one in family.samples]
        counted = {one.labels["finished_reason"]: one.value for one in found if "finished_reason" in one.labels}
        assert counted == expected
