"""The server that all these clients are run against: the bundled demo model in f32, whose words are the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server_process import serve


@pytest.fixture(scope="session")
def base_url() -> Iterator[str]:
    """Where the server listens."""
    with serve("--name", "demo", "--dtype", "f32") as running:
        yield running.base_url
