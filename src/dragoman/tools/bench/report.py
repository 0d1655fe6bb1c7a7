"""A benchmark's report as tables for people, as JSON, and as a picture, for which it needs matplotlib (extra `bench`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dragoman.errors import how_to_install
from dragoman.tools.bench.apis import APIS
from dragoman.tools.bench.measures import Measures, Spread
from dragoman.tools.bench.sweep import Point, Report
from dragoman.tools.text_table import aligned

_LATE_S = 0.05  # from here on the load generator's delay is reported
_BUSY = 0.8  # of a core
_COLUMNS = ("mean", "p50", "p90", "p99", "max")
_COUNTED = {
    "usage": "the server",
    "pieces": "the pieces of the answers, since the server tells no usage: a piece may hold several",
    "both": "the server where it told, else by the pieces of the answers",
    "nobody": "nobody: the server does not tell, and its answers came whole",
}

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


def report_json(report: Report) -> str:
    """The report as a JSON object; times in seconds."""
    return msgspec.json.format(msgspec.json.encode(report)).decode() + "\n"


def report_text(report: Report) -> str:
    return "\n".join(line.rstrip() for line in _lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    model = f", model {report.model}" if report.model else ""
    yield f"{report.url} (API {report.api}{model})"
    if not report.points:
        yield "nothing was measured"
        return
    ends = ", none ends before" if report.ignore_eos else ""
    answers = f"up to {report.output_tokens} tokens{ends}" if APIS[report.api].generates else "vectors or scores"
    yield f"prompts: {report.prompts}; answers: {answers}; seed {report.seed}"
    yield ""
    yield from _throughput(report)
    yield ""
    yield from _latencies(report.points)
    notes = [*report.notes, *_notes(report)]
    if notes:
        yield ""
        yield from notes


def _throughput(report: Report) -> Iterator[str]:
    has_bounds = bool(report.bounds_s)
    titles = ("load", "answered", "failed", "requests/s", "output tokens/s", "total tokens/s")
    rows: list[tuple[str, ...]] = [(*titles, "within bounds") if has_bounds else titles]
    for point in report.points:
        measures = point.measures
        numbers = (
            _number(measures.requests_per_s),
            _number(measures.output_tokens_per_s),
            _number(measures.total_tokens_per_s),
        )
        good = (_share(measures.goodput),) if has_bounds else ()
        rows.append((point.label, str(measures.answered), str(measures.failed), *numbers, *good))
    yield aligned(rows, 1).rstrip("\n")


def _latencies(points: Sequence[Point]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("load", "", *_COLUMNS)]
    for point in points:
        label = point.label
        for title, values in _rows(point.measures):
            cells = (
                tuple(_seconds(getattr(values, column)) for column in _COLUMNS) if values else ("-",) * len(_COLUMNS)
            )
            rows.append((label, title, *cells))
            label = ""
    yield aligned(rows, 2).rstrip("\n")


def _rows(measured: Measures) -> Iterator[tuple[str, Spread | None]]:
    yield "first token", measured.time_to_first_token_s
    yield "each further token", measured.time_per_token_s
    yield "gap between pieces", measured.gap_s
    yield "whole answer", measured.latency_s


def _notes(report: Report) -> Iterator[str]:
    by = dict.fromkeys(point.measures.counted_by for point in report.points if point.measures.answered)
    yield from (f"output tokens: counted by {_COUNTED[source]}" for source in by)
    for point in report.points:
        measures = point.measures
        if measures.output_tokens is not None and measures.pieces is not None:
            prompt = "" if measures.prompt_tokens is None else f"; prompts of {measures.prompt_tokens:.1f} tokens"
            tokens = f"{measures.output_tokens:.1f} tokens in " if measures.counted_by != "pieces" else ""
            yield f"{point.label}: answers of {tokens}{measures.pieces:.1f} pieces on average{prompt}"
    if report.bounds_s:
        bounds = ", ".join(f"{name} {_seconds(bound)}" for name, bound in report.bounds_s.items())
        yield f"within bounds: requests that were answered within {bounds}"
    for point in report.points:
        yield from _troubles(point)


def _troubles(point: Point) -> Iterator[str]:
    for failed in point.measures.failures:
        yield f"{point.label}: {failed.count} x {failed.kind}: {failed.example}"
    if not point.is_complete:
        yield f"{point.label}: interrupted, with {point.measures.unfinished} requests under way that are not counted"
    if point.resent:
        yield f"{point.label}: {point.resent} requests sent again, as the server had closed the connection kept for them"
    if point.late_s > _LATE_S:
        late = f"1 % of requests left more than {_seconds(point.late_s)} late"
        yield f"{point.label}: {late}; their latencies count from when they were due"
    if point.client_cpu > _BUSY:
        yield f"{point.label}: the load generator itself used {point.client_cpu:.0%} of a core, and may be what was measured"


def _seconds(value_s: float) -> str:
    return f"{value_s:.2f} s" if value_s >= 1 else f"{_three_digits(1000 * value_s)} ms"


def _number(value: float | None) -> str:
    return "-" if value is None else _three_digits(value)


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


# --- picture ----------------------------------------------------------------------------------------------------------


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
    _draw_throughput(places[0], points)
    for place, (title, name) in zip(places[1:], _LATENCIES, strict=True):
        _draw_latency(place, title, [(point, getattr(point.measures, name)) for point in points])
    figure.suptitle(" ".join(filter(None, (report.url, report.model))))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_throughput(place: Any, points: Sequence[Point]) -> None:
    rates = [point.measures.output_tokens_per_s for point in points]
    is_tokens = None not in rates
    values = rates if is_tokens else [point.measures.requests_per_s for point in points]
    place.plot([point.value for point in points], values, "o-", color=_COLOURS[0])
    _label_axes(place, "Output tokens/s" if is_tokens else "Requests/s", points)


def _draw_latency(place: Any, title: str, found: Sequence[tuple[Point, Spread | None]]) -> None:
    shown = [(point, values) for point, values in found if values is not None]
    if not shown:
        place.set_title(f"{title}: not told")
        place.axis("off")
        return
    for percentile, colour in zip(_PERCENTILES, _COLOURS, strict=True):
        heights = [1000 * getattr(values, percentile) for _, values in shown]
        place.plot([point.value for point, _ in shown], heights, "o-", label=percentile, color=colour)
    place.legend()
    _label_axes(place, title, [point for point, _ in shown])


def _label_axes(place: Any, title: str, points: Sequence[Point]) -> None:
    place.set_title(title)
    place.set_xlabel(_AXES[points[0].kind])
    place.set_ylim(bottom=0)
    place.set_xticks([point.value for point in points], [f"{point.value:g}" for point in points])
    place.grid(visible=True, alpha=0.3)
