"""A histogram's buckets in the form of Prometheus' client library."""

from __future__ import annotations

from prometheus_client.samples import Exemplar

from dragoman.histogram import Histogram

Buckets = list[tuple[str, float] | tuple[str, float, Exemplar]]


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
