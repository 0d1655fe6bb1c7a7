"""The soak: a server of ours, asked for everything at once, keeps books that agree with its clients'."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.soak.__main__ import main
from benchmarks.soak.faults import FAULTS
from benchmarks.soak.kinds import KINDS


@pytest.mark.full("a small soak takes longest of all; test_soak_books.py shows that its books find what is wrong")
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read as Linux tells it")
def test_the_books_of_a_small_soak_agree(capsys: pytest.CaptureFixture[str]) -> None:
    # Three requests run (as many beams as the widest search has) and one may wait: eight clients are twice as many.
    room = ["--max-num-seqs", "3", "--job-queue-size", "1", "--dtype", "f32"]
    code = main(["--requests", "120", "--warm-up", "46", "--clients", "8", "--every", "60", "--server", *room])
    shown = capsys.readouterr().out
    report = json.loads(shown.splitlines()[-1])
    assert code == 0, shown
    assert report["holds"]
    assert len(report["checks"]) == 8
    assert set(report["checks"].values()) == {0}
    num_visits = report["tenant"]["load 200"]
    assert report["tenant"] == {"load 200": num_visits, "unload 200": num_visits}
    assert num_visits >= 2  # one warms up
    counts = report["outcomes"]
    assert set(counts) == {*KINDS, *FAULTS, "guest", "load", "unload", "cancel"}
    assert set(counts.pop("cancel")) <= {"200", "404"}
    num_requests = 46 + 120 + num_visits * 14
    assert sum(sum(ends.values()) for ends in counts.values()) == num_requests
    no_calls = ("load", "unload", "half", "garbage", "unknown path", "wrong method")
    assert sum(report["calls"].values()) == num_requests - sum(sum(counts[kind].values()) for kind in no_calls)
    assert {"finished", "refused", "failed"} <= set(report["calls"])
    assert "424" in counts["hook"]
    assert set(counts["hook"]) <= {"424", "503"}  # where there was no room
    assert set(counts["wrong key"]) == {"401"}
    settled = [reading for reading in report["readings"] if reading[-1]]
    assert len(settled) == num_visits + 1
    assert all(0 < anonymous <= rss for _, _, rss, anonymous, _ in report["readings"])
