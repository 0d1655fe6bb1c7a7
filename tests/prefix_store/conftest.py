"""Tests of the store do not wait for the disk, but where they look at that."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_sync(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "syncs" not in request.fixturenames:
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes that files have when they are synced, which they really are."""
    sizes: list[int] = []
    really = os.fsync

    def fsync(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return sizes
