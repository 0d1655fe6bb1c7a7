"""Random traffic of several processes on one directory, with eviction, restarts, kills and damage.

The model knows every block's bytes, so that whatever is read is compared, and which blocks nothing can have taken away:
those must be found. It runs on a real file system, and on one in memory that also fills up and loses its power.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Protocol

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dragoman.prefix_store import BlockStore
from dragoman.prefix_store.store import UNLIMITED
from tests.prefix_store.blocks import Clock, content, damage, key
from tests.support import tiers
from tests.support.memory_disk import MemoryDirectory, MemoryDisk

BUDGET = 20_000
SEGMENT = 3_000
NUMBERS = st.integers(0, 60)
SPANS = st.tuples(NUMBERS, st.integers(1, 12)).map(lambda span: range(span[0], sum(span)))
PROCESSES = st.integers(0, 4)


def size(number: int) -> int:
    """Blocks have different sizes, one is larger than a segment, one has none."""
    return {7: 5000, 8: 0}.get(number, 100 + 37 * (number % 11))


class Disk(Protocol):
    """The files of a store, by name."""

    def open(self, budget: int, clock: Clock) -> BlockStore: ...

    def sizes(self) -> dict[str, int]: ...

    def damage(self, name: str, offset: int, data: bytes) -> None: ...

    def cut(self, name: str, length: int) -> None: ...

    def delete(self, name: str) -> None: ...

    def end(self) -> None: ...


class RealDisk:
    """See `Disk`."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp()) / "store"

    def open(self, budget: int, clock: Clock) -> BlockStore:
        return BlockStore.open(self.path, budget, segment_bytes=SEGMENT, clock=clock)

    def sizes(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in sorted(self.path.glob("*.blocks"))}

    def damage(self, name: str, offset: int, data: bytes) -> None:
        damage(self.path / name, offset, data)

    def cut(self, name: str, length: int) -> None:
        os.truncate(self.path / name, length)

    def delete(self, name: str) -> None:
        (self.path / name).unlink()

    def end(self) -> None:
        shutil.rmtree(self.path.parent)


class DiskInMemory(MemoryDisk):
    """See `Disk`."""

    def open(self, budget: int, clock: Clock) -> BlockStore:
        return BlockStore.open(MemoryDirectory(self), budget, segment_bytes=SEGMENT, clock=clock)

    def sizes(self) -> dict[str, int]:
        return {name: inode.st_size for name, inode in sorted(self.files.items())}

    def damage(self, name: str, offset: int, data: bytes) -> None:
        inode = self.files[name]
        inode.data[offset : offset + len(data)] = data

    def cut(self, name: str, length: int) -> None:
        del self.files[name].data[length:]

    def delete(self, name: str) -> None:
        self.unlink(name)

    def end(self) -> None:
        pass


class Traffic(RuleBasedStateMachine):
    """Each store stands for a process: it shares nothing with the others but the directory."""

    disk: Disk

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.safe: set[int] = set()  # blocks that were written, and that nothing can have taken away since
        self.spoilt: set[str] = set()  # files that may have lost their header: what is written there later goes with it
        self.open: list[BlockStore] = []
        self.names: set[str] = set()

    def store(self, number: int) -> BlockStore:
        """One of the processes, which starts if there is none."""
        if not self.open:
            self.start()
        return self.open[number % len(self.open)]

    @rule()
    def start(self) -> None:
        self.open.append(self.disk.open(BUDGET, self.clock))
        self.see_deletions()

    @rule(which=PROCESSES)
    @precondition(lambda self: self.open)
    def stop(self, which: int) -> None:
        store = self.store(which)
        store.close()
        self.open.remove(store)

    @rule(which=PROCESSES)
    @precondition(lambda self: self.open)
    def kill(self, which: int) -> None:
        """What it had written is the system's, and its locks end, as with `kill -9`."""
        self.open.remove(self.store(which))

    @rule(which=PROCESSES, numbers=SPANS, keeps=st.booleans(), group=st.sampled_from([b"", b"a", b"b"]))
    def write(self, which: int, numbers: range, keeps: bool, group: bytes) -> None:
        store = self.store(which)
        for number in numbers:
            until = self.clock() + 100 if keeps else None
            is_known = key(number) in store
            before = self.disk.sizes()
            is_written = store.write(key(number), content(number, size(number)), keep_until=until, group=group)
            self.see_deletions()
            after = self.disk.sizes()
            is_in_spoilt = any(after.get(name, 0) > before.get(name, 0) for name in self.spoilt)
            if is_written and not is_known and not is_in_spoilt:
                self.safe.add(number)

    @rule(which=PROCESSES, numbers=SPANS)
    def read(self, which: int, numbers: range) -> None:
        store = self.store(which)
        store.refresh()
        into = [bytearray(size(number)) for number in numbers]
        keys = [key(number) for number in numbers]
        store.fetch(keys)
        count = store.read(keys, into)
        for number, read in zip(numbers[:count], into, strict=False):
            assert read == content(number, size(number))
        if count < len(numbers):
            assert numbers[count] not in self.safe

    @rule(which=PROCESSES, numbers=SPANS, keeps=st.booleans())
    def touch(self, which: int, numbers: range, keeps: bool) -> None:
        self.store(which).touch([key(number) for number in numbers], self.clock() + 50 if keeps else None, b"a")

    @rule(which=PROCESSES)
    def refresh(self, which: int) -> None:
        self.store(which).refresh()

    @rule(seconds=st.sampled_from([0.1, 40.0, 120.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(file=st.integers(0, 20), place=st.floats(0, 1), data=st.binary(min_size=1, max_size=20))
    def spoil(self, file: int, place: float, data: bytes) -> None:
        if name := self.chosen(file):
            self.spoilt.add(name)
            self.disk.damage(name, int(place * self.disk.sizes()[name]), data)

    @rule(file=st.integers(0, 20), place=st.floats(0, 1))
    def cut(self, file: int, place: float) -> None:
        if name := self.chosen(file):
            self.disk.cut(name, int(place * self.disk.sizes()[name]))

    @rule(file=st.integers(0, 20))
    def delete(self, file: int) -> None:
        if name := self.chosen(file):
            self.disk.delete(name)
            self.see_deletions()

    @rule(which=PROCESSES, num_bytes=st.integers(0, BUDGET))
    def trim(self, which: int, num_bytes: int) -> None:
        self.store(which).trim(num_bytes)
        self.see_deletions()

    @rule(which=PROCESSES)
    def empty(self, which: int) -> None:
        self.store(which).empty()
        assert not self.disk.sizes()
        self.see_deletions()

    @invariant()
    def is_within_budget(self) -> None:
        assert sum(self.disk.sizes().values()) <= BUDGET + 20  # what `spoil` has added at a file's end

    def teardown(self) -> None:
        for store in self.open:
            store.close()
        left = self.disk.open(UNLIMITED, self.clock)
        list(left.verify())
        for number in range(72):
            into = bytearray(size(number))
            if left.read([key(number)], [into]):
                assert into == content(number, size(number))
            else:
                assert number not in self.safe
        assert left.stats().damaged == 0  # verifying has found all of it
        left.close()
        self.disk.end()

    def chosen(self, number: int) -> str | None:
        """A file that is about to be damaged."""
        if not (names := list(self.disk.sizes())):
            return None
        self.safe.clear()
        return names[number % len(names)]

    def see_deletions(self) -> None:
        names = set(self.disk.sizes())
        if self.names - names:
            self.safe.clear()
        self.names = names


class OnRealDisk(Traffic):
    """Kills and damage, by the system's own calls."""

    def __init__(self) -> None:
        self.disk: RealDisk = RealDisk()
        super().__init__()


class OnDiskInMemory(Traffic):
    """Also a disk that fills up, and one that loses its power."""

    def __init__(self) -> None:
        self.disk: DiskInMemory = DiskInMemory()
        super().__init__()

    @rule(num_bytes=st.integers(0, 6_000))
    def fill(self, num_bytes: int) -> None:
        """Others use the disk, too."""
        self.disk.room = self.disk.num_bytes + num_bytes

    @rule()
    def make_room(self) -> None:
        self.disk.room = 1 << 40

    @rule(seed=st.integers(0, 1 << 16))
    def lose_power(self, seed: int) -> None:
        """What was synced is there again, with the next start: what that needs was synced with it."""
        self.open.clear()
        synced = [inode.synced for inode in self.disk.files.values() if inode.synced]
        self.safe = {
            number
            for number in self.safe
            if any(content(number, size(number)) in data for data in synced if size(number))
        }
        self.disk.lose_power(random.Random(seed))
        self.names = set(self.disk.sizes())
        self.start()


SETTINGS = settings(max_examples=tiers.examples(120), stateful_step_count=40)
TestOnRealDisk = OnRealDisk.TestCase
TestOnRealDisk.settings = SETTINGS
TestOnDiskInMemory = OnDiskInMemory.TestCase
TestOnDiskInMemory.settings = SETTINGS
