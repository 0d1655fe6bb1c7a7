"""The soak: every request of every kind is counted once, and a server of ours gives no odd answer to any."""

from __future__ import annotations

import asyncio
import sys
from urllib.parse import urlsplit

import pytest

from benchmarks.soak import KINDS, ROOM, Reading, Soak
from tests.support.server_process import serve


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read as Linux tells it")
def test_every_request_is_counted_and_none_is_answered_oddly() -> None:
    shown: list[Reading] = []
    with serve("--name", "soak", *ROOM) as server:
        port = urlsplit(server.base_url).port
        assert port is not None
        load = Soak(
            server.process.pid,
            port,
            list(KINDS),
            num_clients=8,
            num_requests=200,
            every=50,
            num_warm_requests=len(KINDS),
        )
        report = asyncio.run(load.run(shown.append))
    assert tuple(shown) == report.readings
    assert [reading.num_requests for reading in report.readings] == [50, 100, 150, 200, 200]
    assert set(report.outcomes) <= {"answered", "told what is wrong", "left", "refused"}
    assert {"answered", "told what is wrong", "left"} <= set(report.outcomes)
    assert sum(report.outcomes.values()) == 200
    assert 0 < report.ready.anonymous <= report.ready.rss
