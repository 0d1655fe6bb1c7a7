"""The same numbers under the names of vLLM and of TGI, so that dashboards made for those carry over.

Does: rename. Does not: count anything, or invent what is not counted: those of their metrics that are missing here have no
counterpart. Called by the registry at a scrape, on the event loop.
Source: docs.vllm.ai, "Production Metrics"; huggingface.co/docs/text-generation-inference, "Metrics".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from dragoman.engine.base import EngineStats, Health
from dragoman.histogram import Histogram
from dragoman.metrics.buckets import buckets_of


class CallCounts(Protocol):
    """What is counted of calls, by model."""

    def count(self, name: str, model: str) -> float: ...

    def histogram(self, name: str, model: str) -> Histogram: ...


# their name -> field of Health
_GAUGES: Mapping[str, Mapping[str, str]] = {
    "vllm": {"vllm:num_requests_running": "num_running", "vllm:num_requests_waiting": "num_waiting"},
    "tgi": {"tgi_batch_current_size": "num_running", "tgi_queue_size": "num_waiting"},
}
# their name without `_total` -> field of EngineStats
_ENGINE_COUNTERS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "vllm:num_preemptions": "num_preemptions",
        "vllm:prefix_cache_queries": "num_prefix_queries",
        "vllm:prefix_cache_hits": "num_prefix_hits",
        "vllm:spec_decode_num_draft_tokens": "num_draft_tokens",
        "vllm:spec_decode_num_accepted_tokens": "num_accepted_tokens",
    },
    "tgi": {},
}
# their name without `_total` -> counter of calls
_CALL_COUNTERS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "vllm:prompt_tokens": "prompt",
        "vllm:generation_tokens": "completion",
        "vllm:request_success": "finished",
    },
    "tgi": {"tgi_request_count": "requests", "tgi_request_success": "finished", "tgi_request_failure": "errors"},
}
# their name -> ours
_HISTOGRAMS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "vllm:time_to_first_token_seconds": "dragoman_time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds": "dragoman_inter_token_seconds",
        "vllm:time_per_output_token_seconds": "dragoman_inter_token_seconds",
        "vllm:e2e_request_latency_seconds": "dragoman_request_seconds",
        "vllm:request_queue_time_seconds": "dragoman_queue_seconds",
        "vllm:request_prompt_tokens": "dragoman_request_prompt_tokens",
        "vllm:request_generation_tokens": "dragoman_request_completion_tokens",
    },
    "tgi": {
        "tgi_request_duration": "dragoman_request_seconds",
        "tgi_request_queue_duration": "dragoman_queue_seconds",
        "tgi_request_input_length": "dragoman_request_prompt_tokens",
        "tgi_request_generated_tokens": "dragoman_request_completion_tokens",
    },
}
_STEPS: Mapping[str, Mapping[str, str]] = {"vllm": {"vllm:iteration_tokens": "step_tokens"}, "tgi": {}}
_LABELS: Mapping[str, str] = {"vllm": "model_name", "tgi": "model"}

NAMES = tuple(_LABELS)
"""Whose names there are."""


def renamed(
    kinds: Iterable[str], health: Mapping[str, Health], stats: Mapping[str, EngineStats], calls: CallCounts
) -> Iterator[Metric]:
    """The metrics of all models under the names of these servers. `health` and `stats` by model."""
    for kind in kinds:
        labels = [_LABELS[kind]]
        for name, field in _GAUGES[kind].items():
            yield _simple(GaugeMetricFamily, name, labels, {m: getattr(health[m], field) for m in health})
        if kind == "vllm":
            yield _simple(GaugeMetricFamily, "vllm:kv_cache_usage_perc", labels, _cache_use(health))
        for name, field in _ENGINE_COUNTERS[kind].items():
            yield _simple(CounterMetricFamily, name, labels, {m: getattr(stats[m], field) for m in stats})
        for name, counter in _CALL_COUNTERS[kind].items():
            yield _simple(CounterMetricFamily, name, labels, {m: calls.count(counter, m) for m in health})
        for name, ours in _HISTOGRAMS[kind].items():
            yield _histogram(name, labels, {m: calls.histogram(ours, m) for m in health})
        for name, field in _STEPS[kind].items():
            yield _histogram(name, labels, {m: getattr(stats[m], field) for m in stats})


def _cache_use(health: Mapping[str, Health]) -> dict[str, float]:
    """The share of blocks in use, of models that have blocks."""
    return {model: one.num_used_blocks / one.num_blocks for model, one in health.items() if one.num_blocks}


def _simple(family: Any, name: str, labels: list[str], values: Mapping[str, float | None]) -> Metric:
    made: Any = family(name, name, labels=labels)
    for model, value in values.items():
        if value is not None:
            made.add_metric([model], value)
    metric: Metric = made
    return metric


def _histogram(name: str, labels: list[str], values: Mapping[str, Histogram | None]) -> Metric:
    family = HistogramMetricFamily(name, name, labels=labels)
    for model, histogram in values.items():
        if histogram is not None:
            family.add_metric([model], buckets_of(histogram), histogram.total)
    return family
