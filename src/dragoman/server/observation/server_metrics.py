"""Metrics of loads of models, and of the memory of requests beside models. Written and read on the event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from dragoman.histogram import SECONDS, Histogram
from dragoman.metrics import buckets_of
from dragoman.pictures.memory import num_lent_bytes
from dragoman.server.http.exchange import Bodies


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
        loads = CounterMetricFamily("dragoman_model_loads", "Models that were loaded", labels=["model", "outcome"])
        for key, count in self._loads.items():
            loads.add_metric(list(key), count)
        yield loads
        seconds = HistogramMetricFamily("dragoman_model_load_seconds", "Seconds that loads took", labels=["model"])
        for model, histogram in self._seconds.items():
            seconds.add_metric([model], buckets_of(histogram), histogram.total)
        yield seconds


class MemoryMetrics:
    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies

    def collect(self) -> Iterator[Metric]:
        bodies, images = "Bytes of request bodies that are held", "Bytes lent to the images of requests"
        yield GaugeMetricFamily("dragoman_body_memory_bytes", bodies, self._bodies.num_bytes)
        yield GaugeMetricFamily("dragoman_image_memory_bytes", images, num_lent_bytes())
