"""Random traffic of several processes on one directory, with eviction, restarts, kills and damage.

The model knows every block's bytes, so that whatever is read is compared, and which blocks nothing can have taken away:
those must be found.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from dragoman.prefix_store import BlockStore
from dragoman.prefix_store.store import UNLIMITED
from tests.prefix_store.blocks import Clock, content, damage, key
from tests.support import tiers

BUDGET = 20_000
SEGMENT = 3_000
NUMBERS = st.integers(0, 60)
SPANS = st.tuples(NUMBERS, st.integers(1, 12)).map(lambda span: range(span[0], sum(span)))


def size(number: int) -> int:
    """Blocks have different sizes, one is larger than a segment, one has none."""
    return {7: 5000, 8: 0}.get(number, 100 + 37 * (number % 11))


class Traffic(RuleBasedStateMachine):
    """Each store stands for a process: it shares nothing with the others but the directory."""

    stores = Bundle("stores")

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp()) / "store"
        self.clock = Clock()
        self.safe: set[int] = set()  # blocks that were written, and that nothing can have taken away since
        self.spoilt: set[Path] = (
            set()
        )  # files that may have lost their header: what is written there later goes with it
        self.open: list[BlockStore] = []
        self.names: set[str] = set()

    @rule(target=stores)
    def start(self) -> BlockStore:
        store = BlockStore.open(self.path, BUDGET, segment_bytes=SEGMENT, clock=self.clock)
        self.open.append(store)
        self.see_deletions()
        return store

    @rule(store=consumes(stores))
    def stop(self, store: BlockStore) -> None:
        store.close()
        self.open.remove(store)

    @rule(store=consumes(stores))
    def kill(self, store: BlockStore) -> None:
        """What it had written is the system's, and its locks end, as with `kill -9`."""
        self.open.remove(store)

    @rule(store=stores, numbers=SPANS, keeps=st.booleans(), group=st.sampled_from([b"", b"a", b"b"]))
    def write(self, store: BlockStore, numbers: range, keeps: bool, group: bytes) -> None:
        for number in numbers:
            until = self.clock() + 100 if keeps else None
            is_known = key(number) in store
            before = {path: path.stat().st_size for path in self.files()}
            is_written = store.write(key(number), content(number, size(number)), keep_until=until, group=group)
            self.see_deletions()
            is_in_spoilt = any(
                path in self.spoilt and path.stat().st_size > size for path, size in before.items() if path.exists()
            )
            if is_written and not is_known and not is_in_spoilt:
                self.safe.add(number)

    @rule(store=stores, numbers=SPANS)
    def read(self, store: BlockStore, numbers: range) -> None:
        store.refresh()
        into = [bytearray(size(number)) for number in numbers]
        count = store.read([key(number) for number in numbers], into)
        for number, read in zip(numbers[:count], into, strict=False):
            assert read == content(number, size(number))
        if count < len(numbers):
            assert numbers[count] not in self.safe

    @rule(store=stores, numbers=SPANS, keeps=st.booleans())
    def touch(self, store: BlockStore, numbers: range, keeps: bool) -> None:
        store.touch([key(number) for number in numbers], self.clock() + 50 if keeps else None, b"a")

    @rule(store=stores)
    def refresh(self, store: BlockStore) -> None:
        store.refresh()

    @rule(seconds=st.sampled_from([0.1, 40.0, 120.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(file=st.integers(0, 20), place=st.floats(0, 1), data=st.binary(min_size=1, max_size=20))
    def spoil(self, file: int, place: float, data: bytes) -> None:
        if path := self.chosen(file):
            self.spoilt.add(path)
            damage(path, int(place * path.stat().st_size), data)

    @rule(file=st.integers(0, 20), place=st.floats(0, 1))
    def cut(self, file: int, place: float) -> None:
        if path := self.chosen(file):
            os.truncate(path, int(place * path.stat().st_size))

    @rule(file=st.integers(0, 20))
    def delete(self, file: int) -> None:
        if path := self.chosen(file):
            path.unlink()
            self.see_deletions()

    @rule(store=stores, num_bytes=st.integers(0, BUDGET))
    def trim(self, store: BlockStore, num_bytes: int) -> None:
        store.trim(num_bytes)
        self.see_deletions()

    @rule(store=stores)
    def empty(self, store: BlockStore) -> None:
        store.empty()
        assert not self.files()
        self.see_deletions()

    @invariant()
    def is_within_budget(self) -> None:
        grown = sum(os.stat(path).st_size for path in self.files())
        assert grown <= BUDGET + 20  # what `spoil` has added at a file's end

    def teardown(self) -> None:
        for store in self.open:
            store.close()
        left = BlockStore.open(self.path, UNLIMITED)
        list(left.verify())
        for number in range(72):
            into = bytearray(size(number))
            if left.read([key(number)], [into]):
                assert into == content(number, size(number))
            else:
                assert number not in self.safe
        assert left.stats().damaged == 0  # verifying has found all of it
        left.close()
        shutil.rmtree(self.path.parent)

    def files(self) -> list[Path]:
        return sorted(self.path.glob("*.blocks"))

    def chosen(self, number: int) -> Path | None:
        """A file that is about to be damaged."""
        if not (files := self.files()):
            return None
        self.safe.clear()
        return files[number % len(files)]

    def see_deletions(self) -> None:
        names = {path.name for path in self.files()}
        if self.names - names:
            self.safe.clear()
        self.names = names


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=tiers.examples(120), stateful_step_count=40)
