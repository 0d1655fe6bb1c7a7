"""The benchmark of prompts on disk: its table says what was measured, and every life does what it is asked."""

from __future__ import annotations

import json

import pytest

from benchmarks.prefix_store import main, rate, table

FOUND = {
    "first": {
        "computed_s": 20.0,
        "bytes": 98e6,
        "cold": {"first_s": 0.2, "again_s": 0.05, "same_s": 0.09, "read_s": 0.125, "found": 7968, "is_cold": True},
        "cached": {"first_s": 0.1, "again_s": 0.06, "same_s": 0.08, "read_s": 0.08, "found": 7968, "is_cold": False},
    },
    "neighbour": {
        "disk": {"alone": 20.0, "visited": 18.0, "all": 19.0, "visit_s": 1.5, "found": 3, "read_bytes": 4e8},
        "memory": {"alone": 20.0, "visited": 10.0, "all": 19.5, "visit_s": 0.05, "found": 3, "read_bytes": 0},
    },
    "throughput": {"with": [99.0, 98.0], "without": [100.0, 100.0]},
    "session": {"whole": 1000, "parts": [600, 100, 200, 150]},
}


def test_the_table_has_the_ratios() -> None:
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table(FOUND, 8000, 40).splitlines()]
    ratios = [row[2] for row in rows[2:] if row[2]]
    assert ratios == [
        "100 times sooner", "1.60 times that", "200 times sooner", "1.25 times that",
        "0.900; 150 ms lost; 0.950 with the time between",
        "0.500; 25 ms lost; 0.975 with the time between", "0.985", "1.050",
    ]  # fmt: skip
    assert "page cache" not in rows[3][0]
    assert ["found in memory, for comparison", "50 ms", "", ""] in rows


def test_tokens_count_where_they_came() -> None:
    """Two tokens a second, then one: a span within the gap between two tokens has its part of a token."""
    times = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]
    assert rate(times, [(0.25, 1.75)]) == 2
    assert rate(times, [(0.25, 0.5), (2.0, 2.25)]) == 1.5


@pytest.mark.full("starts thirteen engines; what they do is tested where it is made")
def test_it_measures_with_the_bundled_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--known 256 --visits 2 --turns 4 --rounds 1 --requests 2 --system 100 --pause 0"
    assert main(["--dtype", "f32", *words.split()]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["first"]["bytes"] > 0
    assert found["session"]["whole"] > 0
    assert len(found["session"]["parts"]) == 4
