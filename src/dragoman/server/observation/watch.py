"""Watches each call that generates: lists running calls, and counts, logs and traces ended ones. On the event loop."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.samples import Exemplar

from dragoman.errors import Cancelled, ServerError
from dragoman.histogram import COUNTS, SECONDS, Histogram
from dragoman.server.api import HttpCall, trace_of
from dragoman.server.http.exchange import Exchange
from dragoman.server.observation.record import CallRecord, Outcome, RequestRecord, enter_call
from dragoman.server.observation.request_log import RequestLog
from dragoman.server.observation.tracing import Tracing
from dragoman.types import FinishReason

_Key = tuple[str, str, str]  # API, model and outcome

_HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "dragoman_queue_seconds": ("Seconds that requests waited for their first step", SECONDS),
    "dragoman_time_to_first_token_seconds": ("Seconds from a request's beginning to its first output", SECONDS),
    "dragoman_inter_token_seconds": ("Seconds between the outputs of a sequence", SECONDS),
    "dragoman_request_seconds": ("Seconds that calls took, from first to last byte", SECONDS),
    "dragoman_request_prompt_tokens": ("Prompt tokens of requests", COUNTS),
    "dragoman_request_completion_tokens": ("Completion tokens of requests", COUNTS),
    "dragoman_prefill_seconds": ("Seconds from a request's first step to its first output", SECONDS),
    "dragoman_decode_seconds": ("Seconds from a request's first output to its last", SECONDS),
    "dragoman_inference_seconds": ("Seconds from a request's first step to its last output", SECONDS),
    "dragoman_mean_token_seconds": ("Seconds of inference for each token of a request's longest sequence", SECONDS),
    "dragoman_longest_completion_tokens": ("Completion tokens of a request's longest sequence", COUNTS),
}

DROPPED = "dropped"


class CallMetrics:
    def __init__(self) -> None:
        self._calls: Counter[_Key] = Counter()
        self._tokens: dict[str, Counter[_Key]] = {"prompt": Counter(), "cached": Counter(), "completion": Counter()}
        self._sequences: Counter[tuple[str, str, str, str]] = Counter()  # API, model, outcome, finish reason
        self._rejections: Counter[tuple[str, str, str]] = Counter()  # API, model, reason
        self._failures: Counter[tuple[str, str]] = Counter()  # model, reason; each call that has not finished once
        self._histograms: dict[str, dict[_Key, Histogram]] = {name: {} for name in _HISTOGRAMS}

    def observe(self, record: CallRecord) -> None:
        outcome = record.outcome
        key = (record.api, record.model, str(outcome))
        self._calls[key] += 1
        for kind, counts in self._tokens.items():
            counts[key] += getattr(record, f"num_{kind}_tokens")
        if record.error is not None:
            self._rejections[record.api, record.model, record.error.kind] += 1
        if outcome is Outcome.CLIENT_GONE:
            self._failures[record.model, DROPPED] += 1
        elif record.error is not None:
            self._failures[record.model, record.error.kind] += 1
        trace_id = record.trace.trace_id if record.trace is not None and record.trace.is_sampled else ""
        self._of("dragoman_request_seconds", key).add(record.end_s - record.begin_s, trace_id)
        for request in record.requests:
            self._observe_request(request, key, trace_id)
            if request.prepared_s is not None and outcome is not Outcome.REFUSED:
                for sequence in request.sequences:
                    self._sequences[(*key, str(sequence.finish_reason or FinishReason.ABORT))] += 1

    def _observe_request(self, request: RequestRecord, key: _Key, trace_id: str) -> None:
        observed = {} if request.queue_s is None else {"queue_seconds": request.queue_s}
        if request.first_token_s is not None:
            observed |= _phases(request)
            self._of("dragoman_inter_token_seconds", key).add_all(request.gaps_s(), trace_id)
        for name, value in observed.items():
            self._of(f"dragoman_{name}", key).add(value, trace_id)

    def collect(self) -> Iterator[Metric]:
        labels, counter = ["api", "model", "outcome"], CounterMetricFamily
        yield metric_of(counter, "dragoman_requests", "Calls that have ended", labels, self._calls)
        for kind, counts in self._tokens.items():
            yield metric_of(counter, f"dragoman_{kind}_tokens_of_requests", f"Tokens: {kind}, of calls", labels, counts)
        text = "Sequences that requests asked for, by why they ended"
        yield metric_of(counter, "dragoman_sequences", text, [*labels, "finish_reason"], self._sequences)
        text = "Calls that were answered with an error"
        yield metric_of(counter, "dragoman_errors", text, ["api", "model", "reason"], self._rejections)
        for name, (text, _) in _HISTOGRAMS.items():
            yield metric_of(HistogramMetricFamily, name, text, labels, self._histograms[name])

    def count(self, name: str, model: str) -> float:
        """A counter summed over APIs and outcomes. `name`: `requests`, `finished` (of these), or a kind of tokens."""
        counts = self._tokens.get(name, self._calls)
        outcomes = {Outcome.FINISHED} if name == "finished" else set(Outcome)
        return sum(count for (_, served, outcome), count in counts.items() if served == model and outcome in outcomes)

    def finish_reasons(self, model: str) -> Mapping[str, int]:
        """The number of sequences by finish reason; sequences cut off count as aborted."""
        counts: Counter[str] = Counter()
        for (_, served, _, reason), count in self._sequences.items():
            if served == model:
                counts[reason] += count
        return counts

    def failures(self, model: str) -> Mapping[str, int]:
        """The number of unfinished calls by kind of error; `DROPPED` = the client left."""
        return {reason: count for (served, reason), count in self._failures.items() if served == model}

    def histogram(self, name: str, model: str) -> Histogram:
        """A histogram summed over APIs and outcomes."""
        merged = Histogram(_HISTOGRAMS[name][1])
        for (_, served, _), histogram in self._histograms[name].items():
            if served == model:
                merged.merge(histogram)
        return merged

    def _of(self, name: str, key: _Key) -> Histogram:
        by_key = self._histograms[name]
        if key not in by_key:
            by_key[key] = Histogram(_HISTOGRAMS[name][1])
        return by_key[key]


def _phases(request: RequestRecord) -> dict[str, float]:
    times = request.event_s
    first_s, last_s = min(each[0] for each in times), max(each[-1] for each in times)
    begin_s = min(request.first_step_s, first_s)
    longest = max(sequence.num_tokens for sequence in request.sequences)
    found = {
        "time_to_first_token_seconds": first_s - request.begin_s,
        "request_prompt_tokens": request.num_prompt_tokens,
        "request_completion_tokens": request.num_completion_tokens,
        "prefill_seconds": first_s - begin_s,
        "decode_seconds": last_s - first_s,
        "inference_seconds": last_s - begin_s,
        "longest_completion_tokens": longest,
    }
    return {**found, "mean_token_seconds": (last_s - begin_s) / longest} if longest else found


def metric_of(
    family: Callable[..., Any], name: str, text: str, labels: Sequence[str], values: Mapping[Any, Any]
) -> Metric:
    """A metric with a sample for each value that is not None. `values`: numbers or histograms, by labels or the only one."""
    metric: Any = family(name, text, labels=labels)
    for key, value in values.items():
        words = [key] if isinstance(key, str) else list(key)
        if isinstance(value, Histogram):
            metric.add_metric(words, _buckets(value), value.total)
        elif value is not None:
            metric.add_metric(words, value)
    made: Metric = metric
    return made


def _buckets(histogram: Histogram) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    """Bounds, cumulative counts, and exemplars: a value and its trace."""
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    for place, (bound, count) in enumerate(histogram.cumulative()):
        example = histogram.examples.get(place)
        if example is None:
            buckets.append((bound, count))
        else:
            exemplar = Exemplar({"trace_id": example.trace_id}, example.value, round(example.at_s, 3))
            buckets.append((bound, count, exemplar))
    return buckets


class Watch:
    """The calls of one server. `log`, `tracing` None = off. `other_names`: see `MetricsRegistry`."""

    def __init__(
        self, log: RequestLog | None = None, other_names: tuple[str, ...] = (), tracing: Tracing | None = None
    ) -> None:
        self.metrics = CallMetrics()
        self.other_names = other_names
        self._log = log
        self._tracing = tracing
        self._running: dict[str, CallRecord] = {}  # by their ids
        self._spans: dict[str, Any] = {}  # of these

    @property
    def running(self) -> tuple[CallRecord, ...]:
        return tuple(self._running.values())

    def cancel(self, call_id: str) -> bool:
        """End the call with that id; False if none runs."""
        record = self._running.get(call_id)
        if record is not None:
            record.cancel(Cancelled(f"the request {call_id} was cancelled"))
        return record is not None

    def begin(self, api: str, exchange: Exchange, http: HttpCall) -> CallRecord:
        """The record of a call, for `end` later. Its id is the client's own, unless a running call has the same."""
        call_id = http.request_id
        if call_id in self._running:
            call_id = f"{call_id}-{uuid.uuid4().hex[:8]}"
        record = CallRecord(
            call_id,
            api,
            exchange.path,
            http.method,
            caller=exchange.caller,
            standing=exchange.standing,
            cancel=exchange.cancel,
        )
        record.trace = trace_of(http)
        if self._tracing is not None:
            self._spans[call_id] = self._tracing.begin(record, http.headers)
        enter_call(record)
        self._running[call_id] = record
        return record

    def end(self, record: CallRecord, exchange: Exchange) -> None:
        del self._running[record.call_id]
        record.status = exchange.status
        self._finish(record)
        if self._tracing is not None:
            self._tracing.end(self._spans.pop(record.call_id), record)

    def refused(self, api: str, exchange: Exchange, error: ServerError) -> None:
        """Count a call that was refused before it was read, for its key or its size."""
        record = CallRecord(exchange.request_id, api, exchange.path, exchange.method, caller=exchange.caller)
        record.status, record.error = exchange.status, error
        self._finish(record)

    async def aclose(self) -> None:
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    def _finish(self, record: CallRecord) -> None:
        record.end_s = perf_counter()
        self.metrics.observe(record)
        if self._log is not None:
            self._log.write(record)
