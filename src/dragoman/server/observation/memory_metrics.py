"""Reports the memory of requests beside their models: bodies and pictures, for Prometheus.

Does: report the bytes held at the moment of a scrape. Does not: count or bound it (`bodies` and `pictures.memory` do).
Called on the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from dragoman.pictures.memory import num_lent_bytes
from dragoman.server.http.exchange import Bodies


class MemoryMetrics:
    """The memory of requests of a process. `bodies`: those of its calls."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies

    def collect(self) -> Iterator[Metric]:
        """Both metrics; called by the client library."""
        bodies, images = "Bytes of request bodies that are held", "Bytes lent to the images of requests"
        yield GaugeMetricFamily("dragoman_body_memory_bytes", bodies, self._bodies.num_bytes)
        yield GaugeMetricFamily("dragoman_image_memory_bytes", images, num_lent_bytes())
