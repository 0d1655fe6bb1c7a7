"""The store: blocks by key in a directory of segments, within a budget, shared by processes.

`in` and `touch` are fast on any thread; `read`, `write`, `refresh` and `close` wait for the disk. Errors of the disk
never reach the caller: an unreadable or damaged block is not found, an unwritable one is not kept, and the log has a
line. `_writing` lets one thread at a time write; it is taken before all locks of the `catalogue`.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dragoman.prefix_store import segment
from dragoman.prefix_store.catalogue import Catalogue, logger, reason_of
from dragoman.prefix_store.directory import Directory, StoreDirectory, StoreError
from dragoman.prefix_store.segment import KEY_BYTES, Block, Content, Header, Key, Segment

UNLIMITED = 1 << 62
"""The budget for looking only: nothing is deleted."""

_RUN_BYTES = 8 << 20  # read and checked at once
_FETCH_BYTES = 1 << 20  # stays in a core's cache
_IDLE_S = 600.0  # then an idle segment is sealed, which frees its reserved room
_MAX_ACTIVE = 8  # open segments of one process: per model, one with leases and one without
_LARGEST_SEGMENT = 64 << 20
_SMALLEST_SEGMENT = 8 << 20
_NO_FAULT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # errors that do not concern the file

_Kind = tuple[bytes, str, bool]  # namespace, label, with leases: common to a segment's blocks


@dataclass(frozen=True, slots=True)
class Stats:
    """The store's contents. `damaged`: blocks that this process has found so."""

    bytes: int
    blocks: int
    segments: int
    damaged: int


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """Facts about a segment, for people. `keep_until`: the end of its last lease, 0.0 = none."""

    name: str
    label: str
    namespace: bytes
    bytes: int
    blocks: int
    used_at: float
    keep_until: float
    is_sealed: bool


class Damage(NamedTuple):
    """A damaged block, or an unusable file (`offset` 0)."""

    segment: str
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Run:
    segment: Segment
    blocks: list[Block]

    @property
    def end(self) -> int:
        return self.blocks[-1].end


class BlockStore:
    """Blocks on disk. Made by `open`; every method may be called on any thread."""

    def __init__(
        self, directory: StoreDirectory, budget_bytes: int, segment_bytes: int, clock: Callable[[], float]
    ) -> None:
        self._directory = directory
        self._budget = budget_bytes
        self._segment_bytes = segment_bytes
        self._clock = clock
        self._catalogue = Catalogue(directory, clock)
        self._active: dict[_Kind, Segment] = {}  # this process' open segments; the last written last
        self._num_damaged = 0
        self._is_closed = False
        self._writing = threading.Lock()

    @classmethod
    def open(
        cls,
        directory: Path | StoreDirectory,
        budget_bytes: int,
        *,
        segment_bytes: int | None = None,
        create: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> BlockStore:
        """The store in a directory, created if missing, with the blocks of earlier processes. Raises: StoreError.

        `budget_bytes`: for all processes together; more is deleted. `segment_bytes` None = a 64th of it, 8 to 64 MB.
        """
        usual = min(max(budget_bytes // 64, min(_SMALLEST_SEGMENT, budget_bytes // 8)), _LARGEST_SEGMENT)
        if isinstance(directory, Path):
            directory = Directory(directory, create=create)
        store = cls(directory, budget_bytes, segment_bytes or usual, clock)
        try:
            store._catalogue.open(budget_bytes)
            if budget_bytes != UNLIMITED:
                store._warn_of_full_disk()
        except OSError as error:
            raise StoreError(f"{directory.path} cannot hold the prefix store: {reason_of(error)}") from error
        return store

    def _warn_of_full_disk(self) -> None:
        held = self.stats().bytes
        free = self._directory.free_bytes()
        if held + free < self._budget:
            logger.warning(
                "the prefix store in %s may have %.1f GB, and the disk has room for %.1f GB: give it a smaller budget",
                self._directory.path,
                self._budget / 1e9,
                (held + free) / 1e9,
            )

    def __contains__(self, key: Key) -> bool:
        return key in self._catalogue.index

    # reading

    def read(self, keys: Sequence[Key], into: Sequence[Content]) -> int:
        """Fill `into` with the first n blocks, up to a missing or damaged one. Returns n.

        Later entries of `into` may then have any content. A damaged block is forgotten.
        """
        views = [segment.flat_parts(content) for content in into]
        count = 0
        while count < len(keys):
            run = self._run(keys[count:], _RUN_BYTES)
            if run is None:
                break
            with self._catalogue.changing:
                self._catalogue.mark_used(run.segment)
            read = self._read_run(run, views[count : count + len(run.blocks)])
            count += read
            if read < len(run.blocks) and not self._is_elsewhere(run, read):
                break
        return count

    def fetch(self, keys: Sequence[Key]) -> None:
        """Load blocks that are read soon into the system's page cache; waits for the disk. Skips missing blocks."""
        buffer, position = memoryview(bytearray(_FETCH_BYTES)), 0
        while position < len(keys):
            run = self._run(keys[position:], _RUN_BYTES)
            position += 1 if run is None else len(run.blocks)
            if run is not None:
                with suppress(OSError):  # reading them will fail too
                    file = self._catalogue.files.open(run.segment.name)
                    for begin in range(run.blocks[0].offset, run.end, _FETCH_BYTES):
                        file.preadv([buffer[: run.end - begin]], begin)

    def _run(self, keys: Sequence[Key], most_bytes: int) -> _Run | None:
        """The first block and consecutive ones, up to a size; None if the first is missing."""
        with self._catalogue.changing:
            first = self._catalogue.find(keys[0])
            if first is None:
                return None
            blocks = [first[1]]
            num_bytes = first[1].length
            for key in keys[1:]:
                found = self._catalogue.find(key)
                if found is None or found[0] is not first[0] or found[1].offset != blocks[-1].end:
                    break
                num_bytes += found[1].length
                if num_bytes > most_bytes:
                    break
                blocks.append(found[1])
            return _Run(first[0], blocks)

    def _read_run(self, run: _Run, into: list[list[memoryview]]) -> int:
        """Returns the number of filled blocks; forgets the next one if it is damaged."""
        sizes = [sum(part.nbytes for part in parts) for parts in into]
        fits = [block.length == size for block, size in zip(run.blocks, sizes, strict=True)]
        num_fitting = fits.index(False) if False in fits else len(fits)
        try:
            file = self._catalogue.files.open(run.segment.name)
            count, reason = segment.read_blocks(file, run.blocks[:num_fitting], into[:num_fitting])
        except FileNotFoundError:
            self._catalogue.tell(f"{run.segment.name} is gone; what it held is computed again")
            self._catalogue.drop(run.segment)
            return 0
        except OSError as error:
            if error.errno in _NO_FAULT:
                self._catalogue.tell(f"no block can be read: {reason_of(error)}")
                return 0
            count, reason = 0, reason_of(error)
        if count < len(run.blocks):
            block = run.blocks[count]
            if not fits[count] and count == num_fitting:
                reason = f"it has {block.length} bytes, where {sizes[count]} were expected"
            self._forget_damaged(run.segment, block, reason)
        return count

    def _is_elsewhere(self, run: _Run, position: int) -> bool:
        with self._catalogue.changing:
            found = self._catalogue.find(run.blocks[position].key)
        return found is not None and found[0] is not run.segment

    def _forget_damaged(self, holder: Segment, block: Block, reason: str) -> None:
        """Forget a block and, in a truncated file, all blocks beyond its end."""
        try:
            size = self._directory.stat(holder.name).st_size
        except OSError:
            size = holder.end
        lost = [each for each in map(holder.block, range(holder.num_blocks)) if each.end > size] or [block]
        self._catalogue.forget(holder, lost)
        with self._catalogue.changing:
            self._num_damaged += len(lost)
        what = "a block" if len(lost) == 1 else f"{len(lost)} blocks"
        self._catalogue.tell(f"{what} of {holder.name}, at byte {block.offset}, not used, but computed again: {reason}")

    # writing

    def write(
        self,
        key: Key,
        content: Content,
        *,
        keep_until: float | None = None,
        group: bytes = b"",
        label: str = "",
        namespace: bytes = b"",
    ) -> bool:
        """Keep a block; False if it cannot be kept. Raises: ValueError for a wrong key or a scattered array.

        `keep_until`, in the clock's seconds: a lease of the group (the caller), see `first_to_go`. `label` and
        `namespace` name the block's model in lists; blocks of one model lie together.
        """
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key must have {KEY_BYTES} bytes, got {len(key)}")
        parts = segment.flat_parts(content)
        kind = (namespace[:KEY_BYTES].ljust(KEY_BYTES, b"\0"), label, keep_until is not None)
        with self._writing:
            if self._is_closed:
                return False
            if key in self._catalogue.index:
                self.touch([key], keep_until, group)
                return True
            return self._append(kind, key, parts, keep_until, group)

    def _append(self, kind: _Kind, key: Key, parts: list[memoryview], keep_until: float | None, group: bytes) -> bool:
        try:
            active = self._active_segment(kind, sum(part.nbytes for part in parts))
            if active is None:
                return False
            segment.append(active, key, parts)
            active.appended_at = self._clock()
        except OSError as error:
            self._catalogue.tell(f"nothing can be written to {self._directory.path}: {reason_of(error)}")
            return False
        with self._catalogue.changing:
            if not self._catalogue.holds(active):
                return False  # deleted by another process
            self._catalogue.index.add(active.number, active.entries, active.num_blocks - 1)
            self._catalogue.mark_used(active, keep_until, group)
        return True

    def _active_segment(self, kind: _Kind, num_bytes: int) -> Segment | None:
        """The segment to append to; None with a line in the log without room. Raises: OSError."""
        active = self._active.pop(kind, None)
        if active is not None and (not _is_intact(active) or not active.has_room(num_bytes)):
            self._seal(active)
        elif active is not None:
            self._active[kind] = active
            return active
        while len(self._active) >= _MAX_ACTIVE:
            self._seal(self._active.pop(next(iter(self._active))))
        namespace, label, _ = kind
        capacity = max(self._segment_bytes, segment.smallest_capacity(num_bytes))
        begun = self._catalogue.begin(Header(capacity, namespace, label), self._budget)
        if begun is None:
            self._catalogue.tell(f"a segment of {capacity} bytes has no room in the budget of {self._budget} bytes")
            return None
        self._active[kind] = begun
        return begun

    def _seal(self, active: Segment) -> None:
        """Seal a segment. An empty file is deleted; one that cannot be sealed is scanned at the next start."""
        is_intact = _is_intact(active)
        file, active.writer = active.writer, None
        assert file is not None
        try:
            if not active.num_blocks:
                self._directory.delete(active.name)
            if not active.num_blocks or not is_intact:
                self._catalogue.drop(active)
                return
            segment.seal(self._directory, active, file)
        except OSError as error:
            self._catalogue.tell(f"{active.name} cannot be sealed: {reason_of(error)}")
        self._catalogue.write_use(active)

    # use, and other processes

    def touch(self, keys: Sequence[Key], keep_until: float | None = None, group: bytes = b"") -> None:
        """Note a use of blocks. `keep_until`: a lease of the group. Does not wait for the disk."""
        with self._catalogue.changing:
            found = [self._catalogue.find(key) for key in keys]
            for used in {each[0].number: each[0] for each in found if each is not None}.values():
                self._catalogue.mark_used(used, keep_until, group)

    def refresh(self) -> None:
        """Take in other processes' changes, and record uses for them. Costs a few system calls."""
        try:
            self._catalogue.refresh()
        except OSError as error:
            self._catalogue.tell(f"{self._directory.path} cannot be read: {reason_of(error)}")
        if self._writing.acquire(blocking=False):
            try:
                now = self._clock()
                for kind, active in list(self._active.items()):
                    is_idle = now - active.appended_at > _IDLE_S
                    if is_idle or not _is_intact(active):  # deleted files take room until they are closed
                        self._seal(self._active.pop(kind))
            finally:
                self._writing.release()

    # for people

    def stats(self) -> Stats:
        segments = self._catalogue.segments()
        with self._catalogue.changing:
            return Stats(
                sum(each.use.size for each in segments), len(self._catalogue.index), len(segments), self._num_damaged
            )

    def segments(self) -> list[SegmentFacts]:
        facts = [
            SegmentFacts(
                each.name,
                each.header.label,
                each.header.namespace,
                each.use.size,
                each.num_blocks,
                each.use.used_at,
                max(each.use.copy().leases.values(), default=0.0),
                each.is_sealed,
            )
            for each in self._catalogue.segments()
        ]
        return sorted(facts, key=lambda each: -each.used_at)

    def verify(self) -> Iterator[Damage]:
        """Read every block; yields damaged ones, and forgets them."""
        for name in self._catalogue.unknown():
            yield Damage(name, 0, "it is of another version, or damaged at its beginning")
        for holder in self._catalogue.segments():
            for block in map(holder.block, range(holder.num_blocks)):
                into = [memoryview(bytearray(block.length))]
                try:
                    count, reason = segment.read_blocks(self._catalogue.files.open(holder.name), [block], [into])
                except FileNotFoundError:
                    break
                except OSError as error:
                    count, reason = 0, reason_of(error)
                if not count:
                    self._catalogue.forget(holder, [block])
                    yield Damage(holder.name, block.offset, reason)

    def trim(self, num_bytes: int) -> None:
        """Delete segments, in the usual order, until the store has at most `num_bytes`. Raises: StoreError."""
        self._make_room(num_bytes, everything=False)

    def empty(self) -> None:
        """Delete everything, also open segments: their processes notice and begin again. Raises: StoreError."""
        self._make_room(0, everything=True)

    def _make_room(self, num_bytes: int, *, everything: bool) -> None:
        try:
            self._catalogue.make_room(num_bytes, everything=everything)
        except OSError as error:
            raise StoreError(f"{self._directory.path} cannot be emptied: {reason_of(error)}") from error

    def close(self) -> None:
        """Seal this process' segments, and record uses. Nothing is written afterwards."""
        with self._writing:
            self._is_closed = True
            while self._active:
                self._seal(self._active.popitem()[1])
            with suppress(OSError):
                self._catalogue.write_uses(after_s=0.0)
            self._catalogue.files.close()


def _is_intact(active: Segment) -> bool:
    """False if another process has deleted or truncated the file."""
    if active.writer is None:
        return False
    facts = active.writer.stat()
    return facts.st_nlink > 0 and facts.st_size >= active.end
