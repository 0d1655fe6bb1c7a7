"""The benchmark of prompts on disk: its table says what was measured, and every life does what it is asked."""

from __future__ import annotations

import json

import pytest

from benchmarks.prefix_store import main, table

FOUND = {
    "first": {
        "computed_s": 20.0,
        "bytes": 98e6,
        "cold": {"first_s": 0.2, "again_s": 0.05, "read_s": 0.125, "found": 7968, "is_cold": True},
        "cached": {"first_s": 0.1, "again_s": 0.06, "read_s": 0.08, "found": 7968, "is_cold": False},
    },
    "neighbour": {
        "disk": {"alone": 20.0, "visited": 18.0, "visits": 16, "found": 3, "read_bytes": 4e8},
        "memory": {"alone": 20.0, "visited": 19.0, "visits": 16, "found": 3, "read_bytes": 0},
    },
    "throughput": {"with": [99.0, 98.0], "without": [100.0, 100.0]},
    "session": {"whole": 1000, "parts": [600, 100, 200, 150]},
}


def test_the_table_has_the_ratios() -> None:
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table(FOUND, 8000, 40).splitlines()]
    ratios = [row[2] for row in rows[2:] if row[2]]
    assert ratios == [
        "100 times sooner", "1.60 times that", "200 times sooner", "1.25 times that",
        "0.900; 0.947 of finding it in memory", "0.985", "1.050",
    ]  # fmt: skip
    assert "page cache" not in rows[3][0]
    assert ["found in memory, for comparison", "50 ms", "", ""] in rows


@pytest.mark.full("starts thirteen engines; what they do is tested where it is made")
def test_it_measures_with_the_bundled_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--known 256 --visited 96 --seconds 0.3 --turns 4 --rounds 1 --requests 2 --system 100 --pause 0"
    assert main(["--dtype", "f32", *words.split()]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["first"]["bytes"] > 0
    assert found["session"]["whole"] > 0
    assert len(found["session"]["parts"]) == 4
