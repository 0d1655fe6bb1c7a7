"""Draws a benchmark's report: throughput and latencies over the points of a sweep. Needs matplotlib (extra `bench`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.extras import how_to_install
from dragoman.tools.bench.measures import Spread
from dragoman.tools.bench.sweep import Point, Report

SUFFIXES = (".png", ".svg", ".pdf")
MISSING = f"needs matplotlib: {how_to_install('bench')}"
_PERCENTILES = ("p50", "p90", "p99")
_COLOURS = ("#2471a3", "#d68910", "#c0392b")
_AXES = {"concurrency": "requests at a time", "rate": "requests a second that arrive"}
_LATENCIES = (
    ("Time to first token, ms", "time_to_first_token_s"),
    ("Each further token, ms", "time_per_token_s"),
    ("Whole answer, ms", "latency_s"),
)


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw(report: Report, path: Path) -> None:
    """Write the picture. Raises: OSError, ValueError if nothing was answered."""
    points = [point for point in report.points if point.measures.answered]
    if not points:
        raise ValueError("there is nothing to plot: no request was answered")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8), squeeze=False)
    places = list(axes.flat)
    _throughput(places[0], points)
    for place, (title, name) in zip(places[1:], _LATENCIES, strict=True):
        _latency(place, title, [(point, getattr(point.measures, name)) for point in points])
    figure.suptitle(" ".join(filter(None, (report.url, report.model))))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _throughput(place: Any, points: Sequence[Point]) -> None:
    rates = [point.measures.output_tokens_per_s for point in points]
    is_tokens = None not in rates
    values = rates if is_tokens else [point.measures.requests_per_s for point in points]
    place.plot([point.value for point in points], values, "o-", color=_COLOURS[0])
    _axis(place, "Output tokens/s" if is_tokens else "Requests/s", points)


def _latency(place: Any, title: str, found: Sequence[tuple[Point, Spread | None]]) -> None:
    shown = [(point, values) for point, values in found if values is not None]
    if not shown:
        place.set_title(f"{title}: not told")
        place.axis("off")
        return
    for percentile, colour in zip(_PERCENTILES, _COLOURS, strict=True):
        heights = [1000 * getattr(values, percentile) for _, values in shown]
        place.plot([point.value for point, _ in shown], heights, "o-", label=percentile, color=colour)
    place.legend()
    _axis(place, title, [point for point, _ in shown])


def _axis(place: Any, title: str, points: Sequence[Point]) -> None:
    place.set_title(title)
    place.set_xlabel(_AXES[points[0].kind])
    place.set_ylim(bottom=0)
    place.set_xticks([point.value for point in points], [f"{point.value:g}" for point in points])
    place.grid(visible=True, alpha=0.3)
