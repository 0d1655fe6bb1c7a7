"""Metrics in Prometheus' text format."""

from dragoman.metrics.exposition import METRICS_MEDIA_TYPE, MetricsRegistry

__all__ = ["METRICS_MEDIA_TYPE", "MetricsRegistry"]
