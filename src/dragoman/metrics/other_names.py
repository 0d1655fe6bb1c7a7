"""The same numbers under the names of vLLM and TGI, for existing dashboards; those without a counterpart are missing.

Source: docs.vllm.ai, "Production Metrics"; huggingface.co/docs/text-generation-inference, "Metrics".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UnknownMetricFamily,
)

from dragoman.engine.base import EngineStats, Health
from dragoman.histogram import Histogram
from dragoman.metrics.buckets import buckets_of
from dragoman.types import FinishReason


class CallCounts(Protocol):
    def count(self, name: str, model: str) -> float: ...

    def finish_reasons(self, model: str) -> Mapping[str, int]: ...

    def failures(self, model: str) -> Mapping[str, int]: ...

    def histogram(self, name: str, model: str) -> Histogram: ...


# their name -> field of Health
_GAUGES: Mapping[str, Mapping[str, str]] = {
    "vllm": {"vllm:num_requests_running": "num_running", "vllm:num_requests_waiting": "num_waiting"},
    "tgi": {"tgi_batch_current_size": "num_running", "tgi_queue_size": "num_waiting"},
}
_CACHE_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second one is the older name
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
    },
    "tgi": {"tgi_request_count": "requests", "tgi_request_success": "finished"},
}
# vLLM's reason -> ours; vLLM exposes all reasons from the start
_FINISH_REASONS: Mapping[str, tuple[FinishReason, ...]] = {
    "stop": (FinishReason.EOS, FinishReason.STOP_TOKEN, FinishReason.STOP_STRING),
    "length": (FinishReason.LENGTH,),
    "repetition": (FinishReason.REPETITION,),
    "abort": (FinishReason.ABORT,),
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
        "vllm:request_max_num_generation_tokens": "dragoman_longest_completion_tokens",
        "vllm:request_prefill_time_seconds": "dragoman_prefill_seconds",
        "vllm:request_decode_time_seconds": "dragoman_decode_seconds",
        "vllm:request_inference_time_seconds": "dragoman_inference_seconds",
    },
    "tgi": {
        "tgi_request_duration": "dragoman_request_seconds",
        "tgi_request_queue_duration": "dragoman_queue_seconds",
        "tgi_request_inference_duration": "dragoman_inference_seconds",
        "tgi_request_mean_time_per_token_duration": "dragoman_mean_token_seconds",
        "tgi_request_input_length": "dragoman_request_prompt_tokens",
        "tgi_request_generated_tokens": "dragoman_request_completion_tokens",
    },
}
_STEPS: Mapping[str, Mapping[str, str]] = {"vllm": {"vllm:iteration_tokens_total": "step_tokens"}, "tgi": {}}
_LABELS: Mapping[str, str] = {"vllm": "model_name", "tgi": "model"}
# TGI's counters do not end in `_total`, which Prometheus' library requires
_COUNTER: Mapping[str, Any] = {"vllm": CounterMetricFamily, "tgi": UnknownMetricFamily}

NAMES = tuple(_LABELS)


def renamed(
    kinds: Iterable[str], health: Mapping[str, Health], stats: Mapping[str, EngineStats], calls: CallCounts
) -> Iterator[Metric]:
    """`health` and `stats`: by model."""
    for kind in kinds:
        labels = [_LABELS[kind]]
        for name, field in _GAUGES[kind].items():
            yield _simple(GaugeMetricFamily, name, labels, {m: getattr(health[m], field) for m in health})
        if kind == "vllm":
            for name in _CACHE_USE:
                yield _simple(GaugeMetricFamily, name, labels, _cache_use(health))
            yield _finished(labels, {m: calls.finish_reasons(m) for m in health})
        else:
            yield _failed(labels, {m: calls.failures(m) for m in health})
        for name, field in _ENGINE_COUNTERS[kind].items():
            yield _simple(_COUNTER[kind], name, labels, {m: getattr(stats[m], field) for m in stats})
        for name, counter in _CALL_COUNTERS[kind].items():
            yield _simple(_COUNTER[kind], name, labels, {m: calls.count(counter, m) for m in health})
        for name, ours in _HISTOGRAMS[kind].items():
            yield _histogram(name, labels, {m: calls.histogram(ours, m) for m in health})
        for name, field in _STEPS[kind].items():
            yield _histogram(name, labels, {m: getattr(stats[m], field) for m in stats})


def _cache_use(health: Mapping[str, Health]) -> dict[str, float]:
    return {model: one.num_used_blocks / one.num_blocks for model, one in health.items() if one.num_blocks}


def _finished(labels: list[str], counts: Mapping[str, Mapping[str, int]]) -> Metric:
    """vLLM's count of sequences by finish reason; `counts` by model, then by our reason."""
    name = "vllm:request_success"
    family = CounterMetricFamily(name, name, labels=[*labels, "finished_reason"])
    for model, by_reason in counts.items():
        for word, reasons in _FINISH_REASONS.items():
            family.add_metric([model, word], sum(by_reason.get(reason, 0) for reason in reasons))
    return family


def _failed(labels: list[str], counts: Mapping[str, Mapping[str, int]]) -> Metric:
    """TGI's count of failures; `counts` by model, then by our reasons, of which TGI has fewer."""
    name = "tgi_request_failure"
    family = UnknownMetricFamily(name, name, labels=[*labels, "err"])
    for model, by_reason in counts.items():
        for reason, count in by_reason.items():
            family.add_metric([model, reason], count)
    return family


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
