"""Reads OpenMetrics as strictly as the format asks for."""

from __future__ import annotations

from typing import Any

from prometheus_client.openmetrics import parser


def openmetrics_families(text: str) -> list[Any]:
    """The metrics in a text. Raises: ValueError if it is not OpenMetrics."""
    return list(parser.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
