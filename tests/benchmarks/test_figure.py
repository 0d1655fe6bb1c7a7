"""The plot draws what was measured, where matplotlib is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.serving import results
from benchmarks.serving.figure import PANELS, draw, panel_results
from benchmarks.serving.results import Line, Result

RESULTS = [
    Result(1, "dragoman (int8)", {"tokens_per_s": 300.0}),
    Result(1, "vLLM (bfloat16)", {"failed": "not installed"}),
    Result(2, "memory", {"gb_per_s": 20.0}),
    Result(2, "dragoman (int8)", {"tokens_per_s": 40.0, "bound_tokens_per_s": 50.0}),
    Result(8, "1 stream", {"streams": 1, "tokens_per_s": 40.0, "rss_mb": 900.0}),
    Result(8, "2 streams", {"streams": 2, "tokens_per_s": 60.0, "rss_mb": 905.0}),
    Result(8, "prompt of 128", {"prompt_tokens": 128, "ms_per_prompt_token": 4.5}),
]


def lines(*given: Result) -> list[Line]:
    return [Line(result, results.machine(), "2026-01-01T00:00:00+00:00") for result in given]


def test_a_panel_draws_the_results_of_its_row_that_have_its_value() -> None:
    drawn = {panel[0]: [one.subject for one in panel_results(panel, RESULTS)] for panel in PANELS}
    assert drawn["1. Output tokens/s, many streams"] == ["dragoman (int8)"]
    assert drawn["2. Tokens/s, one stream, and its bound"] == ["dragoman (int8)"]
    assert drawn["8. Memory by streams"] == ["1 stream", "2 streams"]
    assert drawn["8. Cost of a prompt token"] == ["prompt of 128"]
    assert drawn["7. Installed size, MB"] == []


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(lines(*RESULTS), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_results_without_numbers_are_not_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="nothing to draw"):
        draw(lines(Result(1, "vLLM", {"failed": "not installed"})), tmp_path / "plot.png")
