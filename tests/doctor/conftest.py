"""Tests of the doctor measure as little as they can."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def quick_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast memory is read is measured with as little of it as tells anything."""
    monkeypatch.setattr("dragoman.tools.memory_speed.BUFFER_BYTES", 32 << 20)
