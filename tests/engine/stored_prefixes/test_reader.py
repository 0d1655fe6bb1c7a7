"""The reader alone: how it cuts loads into pieces, and what it leaves of the cores to steps."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.engine.rolling.blocks.block_pools import FreshBlock
from dragoman.engine.rolling.stored_prefixes.loading import ReadCosts, Reader, Reading
from tests.engine.stored_prefixes.fake_store import FakeDisk, FakeStore

NUM_BLOCKS = 12
BLOCK_BYTES = 3 << 20  # two of them make a piece


class Memory:
    """Blocks of one kind, all of them the same few bytes long but told as large."""

    pools: tuple[CachePool, ...] = (CachePool(NUM_BLOCKS),)
    block_bytes: tuple[int, ...] = (BLOCK_BYTES,)
    has_states: tuple[bool, ...] = (False,)

    def __init__(self) -> None:
        self.rows = np.zeros((NUM_BLOCKS, 8), np.uint8)

    def block_parts(self, block: int, kind: int = 0) -> list[Any]:
        return [self.rows[block]]


def filled_disk() -> FakeDisk:
    disk = FakeDisk()
    disk.contents = {bytes([number]): bytes([number + 1] * 8) for number in range(NUM_BLOCKS)}
    return disk


def load_of_all() -> tuple[Reading, threading.Event]:
    """A load of all blocks, and what is set when it has ended."""
    has_ended = threading.Event()
    blocks = [FreshBlock(0, number, bytes([number])) for number in range(NUM_BLOCKS)]
    keys = [block.digest for block in blocks]
    return Reading(blocks, keys, NUM_BLOCKS * BLOCK_BYTES, on_end=has_ended.set), has_ended


def read(store: FakeStore, memory: Memory, *, has_neighbours: bool = False) -> Reading:
    """A load of all blocks that has ended."""
    reading, has_ended = load_of_all()
    reader = Reader(store, memory, lambda: has_neighbours)
    reader.submit(reading)
    assert has_ended.wait(30)
    reader.close()
    return reading


def test_every_block_before_one_that_is_damaged_is_read_wherever_it_lies() -> None:
    for damaged in range(NUM_BLOCKS + 1):
        for has_neighbours in (False, True):
            disk, memory = filled_disk(), Memory()
            disk.contents.pop(bytes([damaged]), None)
            reading = read(FakeStore(disk), memory, has_neighbours=has_neighbours)
            assert reading.num_whole == damaged
            assert (memory.rows[:damaged] == np.arange(1, damaged + 1)[:, None]).all()


class Torn(FakeStore):
    """Fails at the first block, while other reads are under way and take a little longer."""

    def __init__(self) -> None:
        super().__init__(filled_disk())
        self.has_failed, self.never = threading.Event(), threading.Event()

    def read(self, keys: Sequence[bytes], into: Sequence[Any]) -> int:
        if keys[0] == bytes([0]):
            self.has_failed.set()
            raise MemoryError
        assert self.has_failed.wait(30)
        self.never.wait(0.02)
        return super().read(keys, into)


def test_nothing_is_written_to_memory_behind_the_end_of_a_load_that_failed() -> None:
    store, memory, seen = Torn(), Memory(), []
    reading, has_ended = load_of_all()

    def end() -> None:
        seen.append(memory.rows.copy())
        has_ended.set()

    reading.on_end = end
    reader = Reader(store, memory, lambda: False)
    reader.submit(reading)
    assert has_ended.wait(30)
    reader.close()
    assert reading.num_whole == 0
    assert (memory.rows == seen[0]).all()


class Counting(FakeStore):
    """Counts reads that are under way at once. `least`: so many wait for each other, the first time."""

    def __init__(self, least: int) -> None:
        super().__init__(filled_disk())
        self.under_way = self.most = 0
        self.changed = threading.Condition()
        self.least = least

    def read(self, keys: Sequence[bytes], into: Sequence[Any]) -> int:
        with self.changed:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.most >= self.least, 30)
        num_whole = super().read(keys, into)
        with self.changed:
            self.under_way -= 1
        return num_whole


def test_two_threads_read_where_nobody_computes_and_one_beside_steps() -> None:
    for has_neighbours, num_threads in ((False, 2), (True, 1)):
        store = Counting(num_threads)
        assert read(store, Memory(), has_neighbours=has_neighbours).num_whole == NUM_BLOCKS
        assert store.most == num_threads


class Slow(FakeStore):
    """Each read waits for a disk that takes its time, which is nobody's core."""

    def read(self, keys: Sequence[bytes], into: Sequence[Any]) -> int:
        threading.Event().wait(0.01)
        return super().read(keys, into)


def test_reading_beside_steps_is_tried_before_it_is_known_and_waiting_for_the_disk_is_no_reason_to_rest() -> None:
    """8,000 tokens of 386 million parameters are 105 MB, or 13 seconds."""
    reader = Reader(FakeStore(filled_disk()), Memory(), lambda: True)
    read_s = ReadCosts(lambda: 0.0).seconds(105e6)
    assert read_s + reader.rests_s(105_000_000) < 8000 * 0.0016 / 2
    reader.close()
    reading, has_ended = load_of_all()
    reader = Reader(Slow(filled_disk()), Memory(), lambda: True)
    reader.submit(reading)
    assert has_ended.wait(30)
    assert reader.rests_s(reading.num_bytes) < reading.duration_s
    reader.close()
