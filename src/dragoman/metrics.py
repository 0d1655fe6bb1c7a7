"""Renders the engines' counters in Prometheus' text format or in OpenMetrics', which also has exemplars.

Reads gauges and totals at a scrape, on the event loop, so that the step loop pays nothing. The same numbers also come
under the names of vLLM and TGI, for existing dashboards; those without a counterpart are missing. Sources: docs.vllm.ai,
"Production Metrics"; huggingface.co/docs/text-generation-inference, "Metrics".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.samples import Exemplar

from dragoman.engine.base import Engine, EngineStats, Health
from dragoman.histogram import Histogram
from dragoman.types import FinishReason

Buckets = list[tuple[str, float] | tuple[str, float, Exemplar]]
LIBRARY_PREFIX = "vllm:"
METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
OPENMETRICS_MEDIA_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"


def buckets_of(histogram: Histogram) -> Buckets:
    """Bounds, cumulative counts, and exemplars: a value and its trace."""
    buckets: Buckets = []
    for place, (bound, count) in enumerate(histogram.cumulative()):
        example = histogram.examples.get(place)
        if example is None:
            buckets.append((bound, count))
        else:
            exemplar = Exemplar({"trace_id": example.trace_id}, example.value, round(example.at_s, 3))
            buckets.append((bound, count, exemplar))
    return buckets


class WatchedModel(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def engine(self) -> Engine: ...


GAUGES: Mapping[str, tuple[str, str]] = {
    "dragoman_requests_running": ("num_running", "Requests with at least one running sequence"),
    "dragoman_requests_waiting": ("num_waiting", "Requests that wait to be admitted"),
    "dragoman_kv_blocks_used": ("num_used_blocks", "KV blocks held by running sequences"),
    "dragoman_kv_blocks": ("num_blocks", "KV blocks in all"),
}
"""Metric name -> (field of Health, help)."""

COUNTERS: Mapping[str, tuple[str, str]] = {
    "dragoman_steps": ("num_steps", "Forward passes"),
    "dragoman_prompt_tokens": ("num_prompt_tokens", "Prompt tokens computed, recomputation included"),
    "dragoman_generation_tokens": ("num_generated_tokens", "Tokens generated"),
    "dragoman_preemptions": ("num_preemptions", "Sequences preempted"),
    "dragoman_context_shifts": ("num_context_shifts", "Full contexts that were shifted so that an answer could go on"),
    "dragoman_prefix_cache_queries": ("num_prefix_queries", "Prompt tokens looked up in the prefix cache"),
    "dragoman_prefix_cache_hits": ("num_prefix_hits", "Prompt tokens found in the prefix cache"),
    "dragoman_prefix_store_hits": ("num_stored_hits", "Of these, the ones that were read from disk"),
    "dragoman_prefix_store_saved_seconds": (
        "stored_saved_s",
        "Seconds that computing the tokens that were read from disk would have taken",
    ),
    "dragoman_prefix_store_read_bytes": ("num_stored_read_bytes", "Bytes of prefixes read from disk"),
    "dragoman_prefix_store_written_bytes": ("num_stored_written_bytes", "Bytes of prefixes written to disk"),
    "dragoman_prefix_store_dropped": (
        "num_stored_dropped",
        "Blocks of prefixes that were not written, as the disk was full or too slow",
    ),
    "dragoman_pictures": ("num_pictures", "Pictures in prompts"),
    "dragoman_picture_cache_hits": ("num_picture_hits", "Pictures that had been embedded before"),
    "dragoman_draft_tokens": ("num_draft_tokens", "Tokens proposed by speculative decoding"),
    "dragoman_accepted_tokens": ("num_accepted_tokens", "Proposed tokens that were accepted"),
    "dragoman_hedges": ("num_hedges", "Requests for which a second server was asked, as the first was slow"),
    "dragoman_hedges_won": ("num_hedges_won", "Of these, those that the second server answered first"),
    "dragoman_engine_restarts": ("num_restarts", "Engines that took the place of one that had died"),
}
"""Metric name (without `_total`) -> (field of EngineStats, help); engines that do not count it leave it out."""

HISTOGRAMS: Mapping[str, tuple[str, str]] = {
    "dragoman_step_seconds": ("step_s", "Seconds that steps took"),
    "dragoman_step_tokens": ("step_tokens", "Tokens that steps computed, of prompts and of answers"),
    "dragoman_step_sequences": ("step_sequences", "Sequences that steps computed for"),
    "dragoman_prefix_store_read_seconds": ("stored_read_s", "Seconds that each read of a prefix from disk took"),
    "dragoman_prefix_store_write_seconds": ("stored_write_s", "Seconds that writing each block to disk took"),
    "dragoman_mask_wait_seconds": (
        "mask_wait_s",
        "Seconds that sampling waited for a grammar's mask, one for each mask",
    ),
}
"""Metric name -> (field of EngineStats, help); engines that do not count it leave it out."""


class WatchedCalls(Protocol):
    def collect(self) -> Iterator[Metric]: ...

    def count(self, name: str, model: str) -> float: ...

    def finish_reasons(self, model: str) -> Mapping[str, int]: ...

    def failures(self, model: str) -> Mapping[str, int]: ...

    def histogram(self, name: str, model: str) -> Histogram: ...


class Collector(Protocol):
    def collect(self) -> Iterator[Metric]: ...


class MetricsRegistry:
    """The metrics of one server; `models` is called at every scrape. `other_names`: of these servers, too."""

    def __init__(
        self,
        models: Callable[[], Iterable[WatchedModel]],
        calls: WatchedCalls | None = None,
        other_names: Sequence[str] = (),
        others: Sequence[Collector] = (),
    ) -> None:
        self._models = models
        self._calls = calls
        self._other_names = other_names
        self._others = others
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self, *, as_openmetrics: bool = False) -> bytes:
        if as_openmetrics:
            text: bytes = openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            return text
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Every metric with one sample per model; called by the client library."""
        models = list(self._models())
        health = {model.name: model.engine.health() for model in models}
        for name, (field, text) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["model"])
            for model in models:
                gauge.add_metric([model.name], getattr(health[model.name], field))
            yield gauge
        yield from _upstreams(health)
        stats = {model.name: model.engine.stats() for model in models}
        for name, (field, text) in COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=["model"])
            for model in models:
                value = getattr(stats[model.name], field)
                if value is not None:
                    counter.add_metric([model.name], value)
            yield counter
        for name, (field, text) in HISTOGRAMS.items():
            family = HistogramMetricFamily(name, text, labels=["model"])
            for model in models:
                histogram = getattr(stats[model.name], field)
                if histogram is not None:
                    family.add_metric([model.name], buckets_of(histogram), histogram.total)
            yield family
        if self._calls is not None:
            yield from self._calls.collect()
            yield from renamed(self._other_names, health, stats, self._calls)
        for other in self._others:
            yield from other.collect()
        # Metrics of an engine's library in this process, under its own names.
        if "vllm" not in self._other_names:
            yield from (metric for metric in REGISTRY.collect() if metric.name.startswith(LIBRARY_PREFIX))


def _upstreams(health: Mapping[str, Health]) -> Iterator[Metric]:
    if not any(one.upstreams for one in health.values()):
        return
    labels = ["model", "upstream"]
    healthy = GaugeMetricFamily("dragoman_upstream_healthy", "Whether a server takes requests (1 or 0)", labels=labels)
    outstanding = GaugeMetricFamily("dragoman_upstream_requests", "Requests that a server has to answer", labels=labels)
    for name, one in health.items():
        for upstream in one.upstreams:
            healthy.add_metric([name, upstream.name], float(upstream.is_healthy))
            outstanding.add_metric([name, upstream.name], upstream.num_outstanding)
    yield from (healthy, outstanding)


# Their names -> fields of Health.
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
    kinds: Iterable[str], health: Mapping[str, Health], stats: Mapping[str, EngineStats], calls: WatchedCalls
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
