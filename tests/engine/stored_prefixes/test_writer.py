"""The writer never lets anybody wait: what it has no room for is not taken, and it tells when there is room again."""

from __future__ import annotations

import threading
from time import monotonic

import pytest

from dragoman.engine.rolling.stats import StoredCounts
from dragoman.engine.rolling.stored_prefixes import writing as writer_module
from dragoman.engine.rolling.stored_prefixes.store import StoredModel
from dragoman.engine.rolling.stored_prefixes.writing import Writer
from tests.engine.stored_prefixes.fake_store import FakeDisk, FakeStore
from tests.support.patience import PATIENCE_S

SIZE = 100


def put(writer: Writer, number: int) -> bool:
    """Hand over a block; False if there is no room for it."""
    copy = writer.buffer(SIZE)
    if copy is None:
        return False
    copy[:] = number
    writer.put(bytes([number]) * 16, copy)
    return True


def test_what_waits_is_bounded_and_room_is_told_once_there_is_some() -> None:
    disk, told, counts = FakeDisk(), threading.Event(), StoredCounts()
    disk.write_gate.clear()
    writer = Writer(FakeStore(disk), StoredModel("model"), counts, SIZE, told.set, most_bytes=10 * SIZE)
    assert [put(writer, number) for number in range(12)] == [True] * 10 + [False] * 2
    assert writer.holds(bytes([9]) * 16)
    assert not writer.holds(bytes([10]) * 16)
    assert not writer.wait_for_room(0.0)
    assert not told.is_set()
    disk.write_gate.set()
    assert told.wait(PATIENCE_S)
    assert writer.wait_for_room(PATIENCE_S)
    writer.close(PATIENCE_S)
    assert {key[0]: set(content) for key, content in disk.contents.items()} == {
        number: {number} for number in range(10)
    }
    assert counts.num_written_bytes == 10 * SIZE
    assert sum(counts.write_s.counts) == 10
    assert not put(writer, 11), "nobody writes any more"


def test_a_disk_that_stands_still_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FakeDisk()
    disk.write_gate.clear()
    writer = Writer(FakeStore(disk), StoredModel("model"), StoredCounts(), SIZE)
    assert all(put(writer, number) for number in range(3))
    assert disk.has_begun_to_write.wait(PATIENCE_S)
    monkeypatch.setattr(writer_module, "_PATIENCE_S", 0.01)
    assert not writer.close(0.0)
    monkeypatch.undo()
    released = threading.Timer(0.01, disk.write_gate.set)
    released.start()
    assert writer.close(0.0)
    assert len(disk.contents) == 1, "the one that had begun, and no other"


def test_what_other_processes_write_is_looked_for_whether_there_is_work_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_REFRESH_S", 0.01)
    disk = FakeDisk()
    writer = Writer(FakeStore(disk), StoredModel("model"), StoredCounts(), SIZE)
    assert disk.is_refreshed.wait(PATIENCE_S)
    disk.is_refreshed.clear()
    end_s = monotonic() + PATIENCE_S
    while not disk.is_refreshed.is_set():
        assert monotonic() < end_s
        writer.touch([b"k" * 16])
    writer.close(PATIENCE_S)
