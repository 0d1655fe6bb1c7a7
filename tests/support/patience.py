"""How long tests wait for what must happen: far longer than it takes, so that a busy machine fails no test.

Waiting costs nothing where it comes at once. httpx waits as long too, instead of its five seconds: servers of tests share
the cores with other tests.
"""

from __future__ import annotations

from contextlib import suppress

PATIENCE_S = 60.0


def _wait_as_long() -> None:
    """Have clients of httpx, whose default is one object that all of them copy, wait as long."""
    with suppress(ImportError):  # tests of clients may have none
        from httpx import _config

        default = vars(_config)["DEFAULT_TIMEOUT_CONFIG"]
        default.connect = default.read = default.write = default.pool = PATIENCE_S


_wait_as_long()
