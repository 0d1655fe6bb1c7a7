"""The benchmark of work that can wait: its table, and once the whole of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import dragoman
from benchmarks.background import Measured, main, table


def test_the_table_tells_medians_and_the_stream_by_itself() -> None:
    found = {
        "alone": Measured([0.1, 0.2, 0.3], [0.010, 0.020, 0.030]),
        "beside a batch": Measured([0.2], [0.021], [4.0]),
        "the batch alone": Measured(requests_s=[9.0]),
    }
    assert table(found).splitlines()[2:] == [
        "| alone | 200 | 20.00 | 1.000 |  |",
        "| beside a batch | 200 | 21.00 | 1.050 | 4.00 |",
        "| the batch alone |  |  |  | 9.00 |",
    ]


@pytest.mark.full("it starts a server, and asks it for ten seconds")
def test_it_runs_with_the_bundled_model(capsys: pytest.CaptureFixture[str]) -> None:
    model = Path(dragoman.__file__).parent / "demo_model"
    assert main(["--model", str(model), "--rounds", "1", "--num-requests", "300", "--answer-tokens", "16"]) == 0
    assert "| beside a batch |" in capsys.readouterr().out
