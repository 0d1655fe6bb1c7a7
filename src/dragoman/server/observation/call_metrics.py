"""Counters and histograms of calls, by API and model, for Prometheus.

Does: count calls that have ended. Does not: count what engines do (`metrics.exposition` reads that from them). Written on
the event loop by `watch`, read there at a scrape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from dragoman.histogram import COUNTS, SECONDS, Histogram
from dragoman.metrics import buckets_of
from dragoman.server.observation.record import CallRecord, Outcome, RequestRecord

_Key = tuple[str, str]  # API and model

_HISTOGRAMS = {
    "dragoman_queue_seconds": ("Seconds that requests waited for their first step", SECONDS),
    "dragoman_time_to_first_token_seconds": ("Seconds from a request's beginning to its first output", SECONDS),
    "dragoman_inter_token_seconds": ("Seconds between the outputs of a sequence", SECONDS),
    "dragoman_request_seconds": ("Seconds that calls took, from first to last byte", SECONDS),
    "dragoman_request_prompt_tokens": ("Prompt tokens of requests", COUNTS),
    "dragoman_request_completion_tokens": ("Completion tokens of requests", COUNTS),
}


class CallMetrics:
    """What calls came to."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str, str]] = Counter()  # API, model, outcome
        self._tokens: dict[str, Counter[_Key]] = {"prompt": Counter(), "cached": Counter(), "completion": Counter()}
        self._rejections: Counter[tuple[str, str]] = Counter()  # API, reason
        self._histograms: dict[str, dict[_Key, Histogram]] = {name: {} for name in _HISTOGRAMS}

    def observe(self, record: CallRecord) -> None:
        """Count a call that has ended."""
        key = (record.api, record.model)
        self._calls[(*key, str(record.outcome))] += 1
        self._tokens["prompt"][key] += record.num_prompt_tokens
        self._tokens["cached"][key] += record.num_cached_tokens
        self._tokens["completion"][key] += record.num_completion_tokens
        if record.error is not None:
            self._rejections[record.api, record.error.kind] += 1
        trace_id = record.trace.trace_id if record.trace is not None and record.trace.is_sampled else ""
        self._of("dragoman_request_seconds", key).add(record.end_s - record.begin_s, trace_id)
        for request in record.requests:
            self._observe_request(request, key, trace_id)

    def _observe_request(self, request: RequestRecord, key: _Key, trace_id: str) -> None:
        if request.queue_s is not None:
            self._of("dragoman_queue_seconds", key).add(request.queue_s, trace_id)
        first_s = request.first_token_s
        if first_s is None:
            return
        self._of("dragoman_time_to_first_token_seconds", key).add(first_s, trace_id)
        self._of("dragoman_inter_token_seconds", key).add_all(request.gaps_s(), trace_id)
        self._of("dragoman_request_prompt_tokens", key).add(request.num_prompt_tokens, trace_id)
        self._of("dragoman_request_completion_tokens", key).add(request.num_completion_tokens, trace_id)

    def collect(self) -> Iterator[Metric]:
        """Every metric; called by the client library."""
        labels = ["api", "model"]
        yield _counter("dragoman_requests", "Calls that have ended", [*labels, "outcome"], self._calls)
        for kind, counts in self._tokens.items():
            yield _counter(f"dragoman_{kind}_tokens_of_requests", f"Tokens: {kind}, of calls", labels, counts)
        yield _counter("dragoman_errors", "Calls that were answered with an error", ["api", "reason"], self._rejections)
        for name, (text, _) in _HISTOGRAMS.items():
            family = HistogramMetricFamily(name, text, labels=labels)
            for key, histogram in self._histograms[name].items():
                family.add_metric(list(key), buckets_of(histogram), histogram.total)
            yield family

    def count(self, name: str, model: str) -> float:
        """The sum over APIs of a counter: `requests`, `finished`, `errors`, or tokens by their kind."""
        if name in self._tokens:
            return sum(count for (_, served), count in self._tokens[name].items() if served == model)
        outcomes = [(outcome, count) for (_, served, outcome), count in self._calls.items() if served == model]
        if name == "requests":
            return sum(count for _, count in outcomes)
        return sum(count for outcome, count in outcomes if (outcome == Outcome.FINISHED) == (name == "finished"))

    def histogram(self, name: str, model: str) -> Histogram:
        """The sum over APIs of a histogram."""
        merged = Histogram(_HISTOGRAMS[name][1])
        for (_, served), histogram in self._histograms[name].items():
            if served == model:
                merged.merge(histogram)
        return merged

    def _of(self, name: str, key: _Key) -> Histogram:
        by_key = self._histograms[name]
        if key not in by_key:
            by_key[key] = Histogram(_HISTOGRAMS[name][1])
        return by_key[key]


def _counter(name: str, text: str, labels: list[str], counts: Mapping[Any, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, count in counts.items():
        family.add_metric(list(key), count)
    return family
