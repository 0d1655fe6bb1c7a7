"""A server's metrics in Prometheus' text format or in OpenMetrics', which also has exemplars.

Engines' gauges and totals are read at a scrape, so that the step loop pays nothing. The same numbers also come under the
names of vLLM and TGI, for existing dashboards; those without a counterpart are missing. On the event loop. Sources:
docs.vllm.ai, "Production Metrics"; huggingface.co/docs/text-generation-inference, "Metrics".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

from dragoman.engine.base import Engine, EngineStats, Health
from dragoman.histogram import SECONDS, Histogram
from dragoman.pictures.memory import num_lent_bytes
from dragoman.server.http.exchange import Bodies
from dragoman.server.observation.watch import CallMetrics, metric_of
from dragoman.types import FinishReason

LIBRARY_PREFIX = "vllm:"
METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
OPENMETRICS_MEDIA_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"


# --- engines ----------------------------------------------------------------------------------------------------------


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


class MetricsRegistry:
    """The metrics of one server; `models` is called at every scrape. `other_names`: of these servers, too."""

    def __init__(
        self,
        models: Callable[[], Iterable[WatchedModel]],
        calls: CallMetrics | None = None,
        other_names: Sequence[str] = (),
        others: Sequence[LoadMetrics | MemoryMetrics] = (),
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
        stats = {model.name: model.engine.stats() for model in models}
        for name, (field, text) in GAUGES.items():
            yield metric_of(GaugeMetricFamily, name, text, ["model"], _field(field, health))
        yield from _upstreams(health)
        for name, (field, text) in COUNTERS.items():
            yield metric_of(CounterMetricFamily, name, text, ["model"], _field(field, stats))
        for name, (field, text) in HISTOGRAMS.items():
            yield metric_of(HistogramMetricFamily, name, text, ["model"], _field(field, stats))
        if self._calls is not None:
            yield from self._calls.collect()
            for kind in self._other_names:
                yield from _renamed(kind, health, stats, self._calls)
        for other in self._others:
            yield from other.collect()
        # Metrics of an engine's library in this process, under its own names.
        if "vllm" not in self._other_names:
            yield from (metric for metric in REGISTRY.collect() if metric.name.startswith(LIBRARY_PREFIX))


def _field(name: str, models: Mapping[str, Health] | Mapping[str, EngineStats]) -> dict[str, Any]:
    return {model: getattr(facts, name) for model, facts in models.items()}


def _upstreams(health: Mapping[str, Health]) -> Iterator[Metric]:
    upstreams = {(model, upstream.name): upstream for model, state in health.items() for upstream in state.upstreams}
    if not upstreams:
        return
    healthy = {key: float(upstream.is_healthy) for key, upstream in upstreams.items()}
    outstanding = {key: upstream.num_outstanding for key, upstream in upstreams.items()}
    labels, text = ["model", "upstream"], "Whether a server takes requests (1 or 0)"
    yield metric_of(GaugeMetricFamily, "dragoman_upstream_healthy", text, labels, healthy)
    text = "Requests that a server has to answer"
    yield metric_of(GaugeMetricFamily, "dragoman_upstream_requests", text, labels, outstanding)


# --- other servers' names ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _OtherNames:
    """One server's names of metrics, and ours. `label`: of a model. Names of counters have no `_total`.

    `gauges`: fields of `Health`, `engine_counters` and `engine_histograms`: of `EngineStats`; `call_counters` and
    `call_histograms`: as `CallMetrics` names them.
    """

    label: str
    counter: Callable[..., Any] = CounterMetricFamily
    gauges: Mapping[str, str]
    engine_counters: Mapping[str, str]
    call_counters: Mapping[str, str]
    call_histograms: Mapping[str, str]
    engine_histograms: Mapping[str, str]


_OTHERS: Mapping[str, _OtherNames] = {
    "vllm": _OtherNames(
        label="model_name",
        gauges={"vllm:num_requests_running": "num_running", "vllm:num_requests_waiting": "num_waiting"},
        engine_counters={
            "vllm:num_preemptions": "num_preemptions",
            "vllm:prefix_cache_queries": "num_prefix_queries",
            "vllm:prefix_cache_hits": "num_prefix_hits",
            "vllm:spec_decode_num_draft_tokens": "num_draft_tokens",
            "vllm:spec_decode_num_accepted_tokens": "num_accepted_tokens",
        },
        call_counters={"vllm:prompt_tokens": "prompt", "vllm:generation_tokens": "completion"},
        call_histograms={
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
        engine_histograms={"vllm:iteration_tokens_total": "step_tokens"},
    ),
    "tgi": _OtherNames(
        label="model",
        counter=UnknownMetricFamily,  # TGI's do not end in `_total`, which Prometheus' library requires
        gauges={"tgi_batch_current_size": "num_running", "tgi_queue_size": "num_waiting"},
        engine_counters={},
        call_counters={"tgi_request_count": "requests", "tgi_request_success": "finished"},
        call_histograms={
            "tgi_request_duration": "dragoman_request_seconds",
            "tgi_request_queue_duration": "dragoman_queue_seconds",
            "tgi_request_inference_duration": "dragoman_inference_seconds",
            "tgi_request_mean_time_per_token_duration": "dragoman_mean_token_seconds",
            "tgi_request_input_length": "dragoman_request_prompt_tokens",
            "tgi_request_generated_tokens": "dragoman_request_completion_tokens",
        },
        engine_histograms={},
    ),
}
NAMES = tuple(_OTHERS)

_CACHE_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second one is the older name
# vLLM's reason -> ours; vLLM exposes all reasons from the start
_FINISH_REASONS: Mapping[str, tuple[FinishReason, ...]] = {
    "stop": (FinishReason.EOS, FinishReason.STOP_TOKEN, FinishReason.STOP_STRING),
    "length": (FinishReason.LENGTH,),
    "repetition": (FinishReason.REPETITION,),
    "abort": (FinishReason.ABORT,),
}


def _renamed(
    kind: str, health: Mapping[str, Health], stats: Mapping[str, EngineStats], calls: CallMetrics
) -> Iterator[Metric]:
    """The metrics under that server's names. `health` and `stats`: by model."""
    names = _OTHERS[kind]
    labels = [names.label]
    for name, field in names.gauges.items():
        yield metric_of(GaugeMetricFamily, name, name, labels, _field(field, health))
    yield from _of_vllm(labels, health, calls) if kind == "vllm" else _of_tgi(labels, health, calls)
    for name, field in names.engine_counters.items():
        yield metric_of(names.counter, name, name, labels, _field(field, stats))
    for name, ours in names.call_counters.items():
        yield metric_of(names.counter, name, name, labels, {model: calls.count(ours, model) for model in health})
    for name, ours in names.call_histograms.items():
        found = {model: calls.histogram(ours, model) for model in health}
        yield metric_of(HistogramMetricFamily, name, name, labels, found)
    for name, field in names.engine_histograms.items():
        yield metric_of(HistogramMetricFamily, name, name, labels, _field(field, stats))


def _of_vllm(labels: list[str], health: Mapping[str, Health], calls: CallMetrics) -> Iterator[Metric]:
    """The share of the cache in use, and the count of sequences by finish reason."""
    used = {model: state.num_used_blocks / state.num_blocks for model, state in health.items() if state.num_blocks}
    for name in _CACHE_USE:
        yield metric_of(GaugeMetricFamily, name, name, labels, used)
    counts = {model: calls.finish_reasons(model) for model in health}
    finished = {
        (model, word): sum(by_reason.get(reason, 0) for reason in reasons)
        for model, by_reason in counts.items()
        for word, reasons in _FINISH_REASONS.items()
    }
    name = "vllm:request_success"
    yield metric_of(CounterMetricFamily, name, name, [*labels, "finished_reason"], finished)


def _of_tgi(labels: list[str], health: Mapping[str, Health], calls: CallMetrics) -> Iterator[Metric]:
    """The count of failures by our reasons, of which TGI has fewer."""
    failed = {(model, reason): count for model in health for reason, count in calls.failures(model).items()}
    name = "tgi_request_failure"
    yield metric_of(UnknownMetricFamily, name, name, [*labels, "err"], failed)


# --- loads and memory -------------------------------------------------------------------------------------------------


class LoadMetrics:
    def __init__(self) -> None:
        self._loads: Counter[tuple[str, str]] = Counter()  # model, outcome
        self._seconds: dict[str, Histogram] = {}

    def loaded(self, model: str, seconds: float) -> None:
        self._loads[model, "loaded"] += 1
        self._seconds.setdefault(model, Histogram(SECONDS)).add(seconds)

    def failed(self, model: str) -> None:
        self._loads[model, "failed"] += 1

    def collect(self) -> Iterator[Metric]:
        labels, text = ["model", "outcome"], "Models that were loaded"
        yield metric_of(CounterMetricFamily, "dragoman_model_loads", text, labels, self._loads)
        text = "Seconds that loads took"
        yield metric_of(HistogramMetricFamily, "dragoman_model_load_seconds", text, ["model"], self._seconds)


class MemoryMetrics:
    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies

    def collect(self) -> Iterator[Metric]:
        bodies, images = "Bytes of request bodies that are held", "Bytes lent to the images of requests"
        yield GaugeMetricFamily("dragoman_body_memory_bytes", bodies, self._bodies.num_bytes)
        yield GaugeMetricFamily("dragoman_image_memory_bytes", images, num_lent_bytes())
