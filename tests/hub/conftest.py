"""A fake hub, and an environment that asks it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.hub import download
from tests.support.fake_hub import FakeHub, fake_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub without repositories; nobody waits before asking it again."""
    monkeypatch.setattr(download, "RETRY_S", 0.0)
    with fake_hub() as running:
        yield running


@pytest.fixture
def environ(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    """The variables under which the hub is asked, with an empty cache."""
    return {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "cache"), "XDG_CACHE_HOME": str(tmp_path / "home")}
