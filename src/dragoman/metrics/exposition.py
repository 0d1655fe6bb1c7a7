"""Renders the engines' counters in Prometheus' text format or in OpenMetrics', which also has exemplars.

Reads gauges and totals at a scrape, on the event loop, so that the step loop pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from dragoman.engine.base import Engine, Health
from dragoman.metrics.buckets import buckets_of
from dragoman.metrics.other_names import CallCounts, renamed

LIBRARY_PREFIX = "vllm:"
METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
OPENMETRICS_MEDIA_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"


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


class WatchedCalls(CallCounts, Protocol):
    def collect(self) -> Iterator[Metric]: ...


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
