"""One counting process for all tests that count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.performance.process import CountingProcess


@pytest.fixture(scope="package")
def counting() -> Iterator[CountingProcess]:
    process = CountingProcess()
    yield process
    process.close()
