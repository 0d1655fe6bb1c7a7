"""The soak: a server of ours, asked for everything at once, keeps books that agree with its clients'."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.soak.__main__ import main
from benchmarks.soak.attacks import WITH_KEYS, WITHOUT_KEYS
from benchmarks.soak.kinds import KINDS
from benchmarks.soak.mix import Faults

SAID = {
    "hook": "424",
    "wrong key": "401",
    "key in a trailer": "401",
    "large without a key": "401",
    "cross-site": "403",
    "other host": "403",
    "host mistake": "400",
    "endless trailers": "431",
}
"""What goes wrong -> a status that is said of it even where there is no room."""


@pytest.mark.full("a small soak takes longest of all; test_soak_books.py shows that its books find what is wrong")
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read as Linux tells it")
@pytest.mark.parametrize(
    ("more", "faults"), [((), WITH_KEYS), (("--no-keys",), WITHOUT_KEYS)], ids=["with keys", "without"]
)
def test_the_books_of_a_small_soak_agree(
    capsys: pytest.CaptureFixture[str], more: tuple[str, ...], faults: Faults
) -> None:
    # Three requests run (as many beams as the widest search has) and one may wait: eight clients are twice as many.
    room = ["--max-num-seqs", "3", "--job-queue-size", "1", "--dtype", "f32"]
    num_warm = 2 * (len(KINDS) + len(faults))
    sizes = ["--requests", "120", "--warm-up", str(num_warm), "--clients", "8", "--every", "60"]
    code = main([*sizes, *more, "--server", *room])
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
    assert set(counts.pop("cancel", ())) <= {"200", "404"}  # nothing is cancelled that was refused before
    assert set(counts) == {*KINDS, *faults, "guest", "load", "unload"}
    sent = {kind: sum(ends.values()) for kind, ends in counts.items()}
    assert sum(sent.values()) >= num_warm + 120 + num_visits * 14  # more where one has others behind or beside it
    no_calls = ("load", "unload", "half", "garbage", "unknown path", "wrong method", "other host", "host mistake")
    perhaps = sum(sent.get(kind, 0) for kind in ("upload", "endless trailers", "pipeline", "large without a key"))
    num_calls = sum(count for kind, count in sent.items() if kind not in no_calls)
    assert num_calls - perhaps <= sum(report["calls"].values()) <= num_calls
    assert {"finished", "refused", "failed"} <= set(report["calls"])
    for kind, status in SAID.items():
        assert kind not in faults or status in counts[kind], kind
    assert set(counts["hook"]) <= {"424", "503"}  # where there was no room
    settled = [reading for reading in report["readings"] if reading[-1]]
    assert (
        2 <= len(settled) <= num_visits + 1
    )  # the first and the last, and those in between at which there were no pictures
    assert all(0 < anonymous <= rss for _, _, rss, anonymous, _ in report["readings"])
