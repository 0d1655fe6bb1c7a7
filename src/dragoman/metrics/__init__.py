"""Metrics in Prometheus' text format."""

from dragoman.metrics.buckets import buckets_of
from dragoman.metrics.exposition import METRICS_MEDIA_TYPE, OPENMETRICS, OPENMETRICS_MEDIA_TYPE, MetricsRegistry

__all__ = ["METRICS_MEDIA_TYPE", "OPENMETRICS", "OPENMETRICS_MEDIA_TYPE", "MetricsRegistry", "buckets_of"]
