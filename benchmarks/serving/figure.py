"""Draws stored results: one PNG with a panel for every row that has something to draw. Needs matplotlib (extra `bench`).

Does: bars and curves of the newest results. Does not: compute anything that the table does not show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.serving.results import Line, Result, latest

OURS_COLOUR, OTHER_COLOUR = "#c0392b", "#7f8c8d"

Draw = Callable[[Any, Sequence[Result]], None]


def draw(lines: Sequence[Line], target: Path) -> None:
    """Write the PNG. Raises: ModuleNotFoundError without matplotlib, ValueError if no result can be drawn."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    results = [line.result for line in latest(list(lines))]
    panels = [(panel, found) for panel in PANELS if (found := panel_results(panel, results))]
    if not panels:
        raise ValueError("there is nothing to draw: no result has numbers")
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(6 * columns, 4 * rows), squeeze=False)
    for place, ((title, _, paint), found) in zip(axes.flat, panels, strict=False):
        paint(place, found)
        place.set_title(title)
    for place in axes.flat[len(panels) :]:
        place.axis("off")
    figure.tight_layout()
    figure.savefig(target, dpi=110)
    pyplot.close(figure)


Panel = tuple[str, tuple[int, str], Draw]  # title, (row, a value that its results have), how


def panel_results(panel: Panel, results: Sequence[Result]) -> list[Result]:
    """The results that a panel draws."""
    row, key = panel[1]
    return [one for one in results if one.row == row and isinstance(one.values.get(key), int | float)]


def _bars(key: str) -> Draw:
    def paint(place: Any, results: Sequence[Result]) -> None:
        shown = list(results)[::-1]
        colours = [OURS_COLOUR if one.subject.startswith("dragoman") else OTHER_COLOUR for one in shown]
        bars = place.barh([one.subject for one in shown], [one.values[key] for one in shown], color=colours)
        place.bar_label(bars, fmt="%.4g", padding=3)
        place.margins(x=0.15)

    return paint


def _groups(keys: Mapping[str, str], unit: str) -> Draw:
    """Bars side by side for several values of each subject."""

    def paint(place: Any, results: Sequence[Result]) -> None:
        width = 0.8 / len(keys)
        for index, (key, label) in enumerate(keys.items()):
            places = [number + index * width for number in range(len(results))]
            place.barh(places, [one.values.get(key) or 0 for one in results], height=width, label=label)
        place.set_yticks([number + 0.4 - width / 2 for number in range(len(results))], [one.subject for one in results])
        place.invert_yaxis()
        place.set_xlabel(unit)
        place.legend()

    return paint


def _curve(x: str, y: str, x_label: str, y_label: str) -> Draw:
    def paint(place: Any, results: Sequence[Result]) -> None:
        ordered = sorted(results, key=lambda one: float(one.values[x] or 0))
        place.plot([one.values[x] for one in ordered], [one.values[y] for one in ordered], "o-", color=OURS_COLOUR)
        place.set_xscale("log", base=2)
        place.xaxis.set_major_formatter("{x:.0f}")
        place.set_ylim(0, 1.1 * max(float(one.values[y] or 0) for one in ordered))
        place.set_xlabel(x_label)
        place.set_ylabel(y_label)
        place.grid(visible=True, alpha=0.3)

    return paint


PANELS: tuple[Panel, ...] = (
    ("1. Output tokens/s, many streams", (1, "tokens_per_s"), _bars("tokens_per_s")),
    (
        "2. Tokens/s, one stream, and its bound",
        (2, "bound_tokens_per_s"),
        _groups({"tokens_per_s": "measured", "bound_tokens_per_s": "memory bandwidth"}, "tokens/s"),
    ),
    ("3. HTTP / bare kernels", (3, "ratio"), _bars("ratio")),
    (
        "4. First token behind a shared prefix",
        (4, "uncached_ms"),
        _groups({"uncached_ms": "uncached", "cached_ms": "cached"}, "ms"),
    ),
    (
        "5. Gap between tokens during a prefill",
        (5, "busy_ms_p99"),
        _groups({"busy_ms_p50": "median", "busy_ms_p99": "p99"}, "ms"),
    ),
    ("6. Start to first token, s", (6, "cold_s"), _groups({"cold_s": "cold", "warm_s": "warm"}, "s")),
    ("7. Installed size, MB", (7, "total_mb"), _bars("total_mb")),
    ("8. Throughput by streams", (8, "streams"), _curve("streams", "tokens_per_s", "streams", "output tokens/s")),
    ("8. Memory by streams", (8, "streams"), _curve("streams", "rss_mb", "streams", "resident MB")),
    (
        "8. Cost of a prompt token",
        (8, "ms_per_prompt_token"),
        _curve("prompt_tokens", "ms_per_prompt_token", "prompt tokens", "ms per prompt token"),
    ),
    ("9. Throughput under pressure, relative", (9, "ratio"), _bars("ratio")),
)
