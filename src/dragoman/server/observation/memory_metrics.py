"""Reports the bytes of request bodies and of pictures for Prometheus. Called on the event loop."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from dragoman.pictures.memory import num_lent_bytes
from dragoman.server.http.exchange import Bodies


class MemoryMetrics:
    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies

    def collect(self) -> Iterator[Metric]:
        bodies, images = "Bytes of request bodies that are held", "Bytes lent to the images of requests"
        yield GaugeMetricFamily("dragoman_body_memory_bytes", bodies, self._bodies.num_bytes)
        yield GaugeMetricFamily("dragoman_image_memory_bytes", images, num_lent_bytes())
