"""One real server with the bundled demo model for all end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server_process import ServerProcess, serve


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    with serve("--name", "demo", "--max-num-seqs", "96") as running:
        yield running
