"""The store: blocks by key in a directory of segments, within a budget, shared by processes.

Does: find, read, write, keep and delete blocks; see what other processes write and delete. Does not: know engines or models,
or start threads. Engines ask `in` and `touch` on any thread; `read`, `write`, `refresh` and `close` wait for the disk and
belong on threads for that. `dragoman store` lists, verifies, trims and empties with it.

Trouble with the disk never reaches the caller: a block that cannot be read, or is not what was written, is not found; one
that cannot be written is not kept; a line in the log says so.

Locks, in the order in which they are taken: `_writing` (one writer at a time), the directory's (processes, when segments
begin or go), `_changing` (the index and the segments in memory; never held while the disk is waited for).
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dragoman.prefix_store import layout, segment
from dragoman.prefix_store.directory import Busy, Directory, StoreError, try_flock
from dragoman.prefix_store.files import OpenFiles
from dragoman.prefix_store.index import Index, place, split
from dragoman.prefix_store.layout import KEY_BYTES, Content, Header, Key
from dragoman.prefix_store.retention import Use, first_to_go
from dragoman.prefix_store.segment import Block, NotYet, Segment, Unknown

logger = logging.getLogger("dragoman.prefix_store")

UNLIMITED = 1 << 62
"""The budget of whoever only looks: nothing is deleted."""

_LOCK_WAIT_S = 2.0
_RUN_BYTES = 8 << 20  # read at once; checked while it is in the processor's cache, the next being fetched meanwhile
_MAX_ACTIVE = 8  # segments that one process appends to: for each model, one with leases and one without
_WRITE_USE_AFTER_S = 30.0  # last use and leases go to the disk no more often
_SAME_TROUBLE_S = 60.0  # the log repeats no reason sooner
_CLOCK_TICK_NS = 2_000_000_000  # file systems' times may be as coarse
_LARGEST_SEGMENT = 64 << 20
_SMALLEST_SEGMENT = 8 << 20


@dataclass(frozen=True, slots=True)
class Stats:
    """What the store holds, and what this process has read and written since it opened it."""

    bytes: int
    budget_bytes: int
    blocks: int
    segments: int
    read_blocks: int = 0
    read_bytes: int = 0
    read_seconds: float = 0.0
    written_blocks: int = 0
    written_bytes: int = 0
    write_seconds: float = 0.0
    damaged: int = 0
    failed_writes: int = 0
    deleted_segments: int = 0


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment, for people to read. `keep_until`: the end of its last lease, 0.0 without one."""

    name: str
    label: str
    namespace: bytes
    bytes: int
    blocks: int
    used_at: float
    keep_until: float
    is_sealed: bool


@dataclass(slots=True)
class _Counts:
    read_blocks: int = 0
    read_bytes: int = 0
    read_seconds: float = 0.0
    written_blocks: int = 0
    written_bytes: int = 0
    write_seconds: float = 0.0
    damaged: int = 0
    failed_writes: int = 0
    deleted_segments: int = 0


class BlockStore:
    """Blocks on disk. Open with `open`; every method may be called on any thread."""

    def __init__(self, directory: Directory, budget_bytes: int, segment_bytes: int, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._budget = budget_bytes
        self._segment_bytes = segment_bytes
        self._clock = clock
        self._files = OpenFiles(directory)
        self._index = Index()
        self._segments: dict[int, Segment] = {}
        self._numbers: dict[str, int] = {}  # of segments by name
        self._unknown: set[str] = set()  # names of files that cannot be read: of other versions, or damaged
        self._active: dict[tuple[bytes, str, bool], Segment] = {}  # by namespace, label, with leases; last written last
        self._next_number = 0
        self._listed_ns = 0  # the directory's time of change when it was last listed; 0: list it again
        self._counts = _Counts()
        self._told: dict[str, float] = {}
        self._is_closed = False
        self._writing = threading.Lock()
        self._refreshing = threading.Lock()
        self._changing = threading.RLock()

    @classmethod
    def open(
        cls,
        directory: Path,
        budget_bytes: int,
        *,
        segment_bytes: int | None = None,
        create: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> BlockStore:
        """The store in a directory, which is made if need be, with all that earlier processes have left there.

        `budget_bytes` is for all processes together; what is beyond it is deleted. Without `segment_bytes`, a segment has a
        64th of it, from 8 to 64 MB. Raises: StoreError.
        """
        usual = min(max(budget_bytes // 64, min(_SMALLEST_SEGMENT, budget_bytes // 8)), _LARGEST_SEGMENT)
        store = cls(Directory(directory, create=create), budget_bytes, segment_bytes or usual, clock)
        try:
            try:
                with store._directory.lock(_LOCK_WAIT_S):
                    store._list()
                    store._finish_abandoned()
                    store._make_room(0)
            except Busy:
                store._list()
            store._warn_of_full_disk()
        except OSError as error:
            raise StoreError(f"{directory} cannot hold the prefix store: {error.strerror or error}") from error
        return store

    def __contains__(self, key: Key) -> bool:
        return key in self._index

    # reading

    def read(self, keys: Sequence[Key], into: Sequence[Content]) -> int:
        """Fill the contents of the first n blocks that are there, whole and true; return n.

        What `into` has beyond the first n may hold anything then. A block that is not what was written is forgotten.
        """
        begin_s = time.perf_counter()
        views = [layout.flat_parts(content) for content in into]
        count = num_bytes = 0
        while count < len(keys):
            run = self._run(keys[count:])
            if not run:
                break
            found, blocks, following = run
            num_true = self._read_run(found, blocks, views[count : count + len(blocks)], following)
            num_bytes += sum(block.length for block in blocks[:num_true])
            count += num_true
            if num_true < len(blocks) and keys[count] not in self._index:
                break  # otherwise another segment holds it
        with self._changing:
            self._counts.read_blocks += count
            self._counts.read_bytes += num_bytes
            self._counts.read_seconds += time.perf_counter() - begin_s
        return count

    def _run(self, keys: Sequence[Key]) -> tuple[Segment, list[Block], int] | None:
        """The first block's segment, it and those that lie behind it there, and how many more bytes do that."""
        with self._changing:
            found = self._find(keys[0])
            if found is None:
                return None
            first, block = found
            blocks, following = [block], 0
            end, total = block.end, block.length
            for key in keys[1:]:
                found = self._find(key)
                if found is None or found[0] is not first or found[1].offset != end:
                    break
                end = found[1].end
                total += found[1].length
                if total <= _RUN_BYTES:
                    blocks.append(found[1])
                elif total <= 2 * _RUN_BYTES:
                    following = end - blocks[-1].end
                else:
                    break
            self._mark_used(first)
            return first, blocks, following

    def _find(self, key: Key) -> tuple[Segment, Block] | None:
        found = self._index.place_of(key)
        if found is None:
            return None
        number, position = split(found)
        return self._segments[number], self._segments[number].block(position)

    def _read_run(self, found: Segment, blocks: list[Block], into: list[list[memoryview]], following: int) -> int:
        """How many blocks were filled; the next one is forgotten."""
        fitting = next(
            (i for i, (block, parts) in enumerate(zip(blocks, into, strict=True)) if block.length != _size(parts)),
            len(blocks),
        )
        try:
            file = self._files.open(found.name)
            if following and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.descriptor, blocks[-1].end, following, os.POSIX_FADV_WILLNEED)
            count, reason = segment.read_blocks(file, blocks[:fitting], into[:fitting]) if fitting else (0, "")
        except FileNotFoundError:
            self._tell(f"{found.name} is gone; what it held is computed again")
            self._drop(found)
            return 0
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):  # no fault of the block
                self._tell(f"no block can be read: {error.strerror}")
                with self._changing:
                    self._forget(found, blocks[0])
                return 0
            count, reason = 0, error.strerror or str(error)
        if count == len(blocks):
            return count
        if not reason:
            reason = f"it has {blocks[count].length} bytes, where {_size(into[count])} were expected"
        self._forget_damaged(found, blocks[count], reason)
        return count

    def _forget_damaged(self, found: Segment, block: Block, reason: str) -> None:
        """Forget a block, and all others that are beyond the file's end, if it ends sooner than it did."""
        try:
            size = self._directory.stat(found.name).st_size
        except OSError:
            size = found.use.size
        with self._changing:
            lost = [b for b in map(found.block, range(found.num_blocks)) if b.end > size and self._is_at(found, b)]
            for each in lost or [block]:
                self._forget(found, each)
            self._counts.damaged += len(lost or [block])
        beyond = f" {len(lost)} blocks" if len(lost) > 1 else " a block"
        self._tell(f"{found.name} has{beyond} damaged at byte {block.offset}: {reason}; computed again", repeat=True)

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
        """Keep a block; return False if that cannot be.

        `keep_until`, in the clock's seconds, is a lease of the group (the caller's), see `retention`. `label` and
        `namespace` tell people who list the store of which model the block is; blocks of one model lie together.
        Raises: ValueError for a key that does not have 16 bytes, or an array that is not contiguous.
        """
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key must have {KEY_BYTES} bytes, got {len(key)}")
        parts = layout.flat_parts(content)
        kind = (namespace[:KEY_BYTES].ljust(KEY_BYTES, b"\0"), label, keep_until is not None)
        with self._writing:
            if self._is_closed:
                return False
            if key in self._index:
                self.touch([key], keep_until, group)
                return True
            begin_s = time.perf_counter()
            is_written = self._append(kind, key, parts, keep_until, group)
            with self._changing:
                self._counts.failed_writes += not is_written
                self._counts.written_blocks += is_written
                self._counts.written_bytes += _size(parts) * is_written
                self._counts.write_seconds += time.perf_counter() - begin_s
            return is_written

    def _append(
        self,
        kind: tuple[bytes, str, bool],
        key: Key,
        parts: list[memoryview],
        keep_until: float | None,
        group: bytes,
    ) -> bool:
        try:
            active = self._active_segment(kind, _size(parts))
            if active is None:
                return False
            segment.append(active, key, parts)
        except OSError as error:
            self._tell(f"nothing can be written to {self._directory.path}: {error.strerror or error}")
            return False
        with self._changing:
            if active.number not in self._segments:
                return False  # somebody has emptied the store meanwhile
            self._index.add(active.number, active.entries, active.num_blocks - 1)
            self._mark_used(active, keep_until, group)
        return True

    def _active_segment(self, kind: tuple[bytes, str, bool], num_bytes: int) -> Segment | None:
        """The segment to append to, with room for a block; None, and a line in the log, if there can be none."""
        active = self._active.pop(kind, None)
        if active is not None and (active.number not in self._segments or not active.has_room(num_bytes)):
            self._seal(active)
        elif active is not None:
            self._active[kind] = active
            return active
        while len(self._active) >= _MAX_ACTIVE:
            self._seal(self._active.pop(next(iter(self._active))))
        capacity = max(self._segment_bytes, segment.smallest_capacity(num_bytes))
        with self._directory.lock(_LOCK_WAIT_S):
            if not self._make_room(capacity):
                self._tell(f"a segment of {capacity} bytes has no room in the budget of {self._budget} bytes")
                return None
            begun = segment.begin(self._directory, self._new_number(), Header(capacity, *kind[:2]), self._clock())
        with self._changing:
            self._add(begun)
        self._active[kind] = begun
        return begun

    def _seal(self, active: Segment) -> None:
        """Let no more be appended. An empty file is deleted, one that cannot be sealed is scanned at the next start."""
        file, active.writer = active.writer, None
        assert file is not None
        try:
            if not active.num_blocks or os.fstat(file.descriptor).st_nlink == 0:
                self._directory.delete(active.name)
                self._drop(active)
            else:
                segment.seal(self._directory, active, file)
                self._write_use(active)
        except OSError as error:
            self._tell(f"{active.name} cannot be sealed: {error.strerror or error}")

    # use

    def touch(self, keys: Sequence[Key], keep_until: float | None = None, group: bytes = b"") -> None:
        """Note that blocks were used again. `keep_until` prolongs the group's leases, see `retention`. Waits for no disk."""
        with self._changing:
            places = (self._index.place_of(key) for key in keys)
            for number in {split(found)[0] for found in places if found is not None}:
                self._mark_used(self._segments[number], keep_until, group)

    def _mark_used(self, used: Segment, keep_until: float | None = None, group: bytes = b"") -> None:
        used.use.used_at = self._clock()
        used.unwritten = True
        if keep_until is not None:
            digest = layout.group_digest(group)
            used.use.leases[digest] = max(keep_until, used.use.leases.get(digest, 0.0))

    def _write_uses(self, *, after_s: float = _WRITE_USE_AFTER_S) -> None:
        """Write down last use and leases of segments for which that was not done lately."""
        now = self._clock()
        with self._changing:
            due = [each for each in self._segments.values() if each.unwritten and now - each.written_at >= after_s]
        if due:
            with suppress(Busy), self._directory.lock(0.0 if after_s else _LOCK_WAIT_S):
                for each in due:
                    self._write_use(each)

    def _write_use(self, used: Segment) -> None:
        with suppress(OSError):  # it is for a better choice only
            segment.write_use(self._directory, used, self._clock())

    # other processes

    def refresh(self) -> None:
        """See what other processes have written and deleted, and tell them what was used here. A few calls to the system."""
        if not self._refreshing.acquire(blocking=False):
            return  # another thread is about it
        try:
            if self._directory.changed_ns() != self._listed_ns:
                self._list()
            with self._changing:
                growing = [each for each in self._segments.values() if not each.is_sealed and each.writer is None]
            for each in growing:
                self._load_growth(each)
            self._write_uses()
        except OSError as error:
            self._tell(f"{self._directory.path} cannot be read: {error.strerror or error}")
        finally:
            self._refreshing.release()

    def _list(self) -> None:
        """Take in the segments that are new, and forget those that are gone. Raises: OSError."""
        changed_ns = self._directory.changed_ns()
        names = self._directory.names()
        is_settled = abs(time.time_ns() - changed_ns) > _CLOCK_TICK_NS  # else a change could leave the same time
        known = set(names)
        with self._changing:
            gone = [each for each in self._segments.values() if each.name not in known]
        for each in gone:
            self._drop(each)
        self._unknown &= known
        for name in names:
            if name not in self._numbers and name not in self._unknown and not self._load(name):
                is_settled = False
        self._listed_ns = changed_ns if is_settled else 0

    def _load(self, name: str) -> bool:
        """False if that is to be tried again: the file's process has not written its header yet."""
        try:
            loaded = segment.load(self._directory, name, self._new_number())
        except FileNotFoundError:
            return True
        except NotYet:
            return False
        except (Unknown, OSError) as error:
            why = "it is of another version, or damaged" if isinstance(error, Unknown) else error.strerror or str(error)
            self._tell(f"{name} is not used: {why}")
            self._unknown.add(name)
            return True
        with self._changing:
            if name not in self._numbers:
                self._add(loaded)
        return True

    def _load_growth(self, growing: Segment) -> None:
        first = growing.num_blocks
        try:
            segment.load_growth(self._directory, growing)
        except FileNotFoundError:
            self._drop(growing)
        except OSError as error:
            self._tell(f"{growing.name} cannot be read: {error.strerror or error}")
        with self._changing:
            if growing.number in self._segments and growing.num_blocks > first:
                self._index.add(growing.number, growing.entries, first)

    def _finish_abandoned(self) -> None:
        """Seal what killed processes have left, so that it need not be scanned again. Call with the directory's lock."""
        for each in list(self._segments.values()):
            if not each.is_sealed:
                with suppress(OSError):
                    file = self._directory.open(each.name, os.O_RDWR)
                    if try_flock(file):
                        if each.num_blocks:
                            segment.seal(self._directory, each, file, sync=False)
                        else:
                            self._directory.delete(each.name)
                            self._drop(each)

    # room

    def _make_room(self, num_bytes: int, *, budget: int | None = None, whole: bool = False) -> bool:
        """Delete segments until so many bytes have room; False if they have not even so. Call with the directory's lock.

        A segment that a process is writing counts in the size that it may grow to, and stays, unless `whole`.
        Raises: OSError.
        """
        budget = self._budget if budget is None else budget
        total, uses, unknown = self._survey(spare_written=not whole)
        victims = sorted(unknown, key=lambda use: use.used_at) + first_to_go(uses, budget, self._clock())
        for victim in victims:
            if total + num_bytes <= budget and not whole:
                break
            self._directory.delete(victim.name)
            total -= victim.size
            with self._changing:
                self._counts.deleted_segments += 1
                if (number := self._numbers.get(victim.name)) is not None:
                    self._drop(self._segments[number])
        return total + num_bytes <= budget

    def _survey(self, *, spare_written: bool) -> tuple[int, list[Use], list[Use]]:
        """All bytes, and what may be deleted: segments, and files that cannot be used as such."""
        total = 0
        uses: list[Use] = []
        unknown: list[Use] = []
        self._list()
        for name in self._directory.names():
            with suppress(FileNotFoundError):
                number = self._numbers.get(name)
                if number is None:
                    facts = self._directory.stat(name)
                    total += facts.st_size
                    if not spare_written or not self._is_written(name):
                        unknown.append(Use(name, facts.st_size, facts.st_mtime))
                    continue
                known = self._segments[number]
                segment.load_use(self._directory, known)
                if not known.is_sealed and spare_written and self._is_written(name):
                    total += max(known.use.size, known.header.capacity)
                else:
                    total += known.use.size
                    uses.append(known.use)
        return total, uses, unknown

    def _is_written(self, name: str) -> bool:
        """True if a process, maybe this one, holds the file to append to it."""
        try:
            return not try_flock(self._directory.open(name))
        except FileNotFoundError:
            raise
        except OSError:
            return False

    def trim(self, num_bytes: int) -> None:
        """Delete segments, by the usual order, until the store has at most so many bytes. Raises: StoreError."""
        self._with_lock(lambda: self._make_room(0, budget=num_bytes))

    def empty(self) -> None:
        """Delete everything, also what processes are writing: they notice and begin anew. Raises: StoreError."""
        self._with_lock(lambda: self._make_room(0, whole=True))

    def _with_lock(self, work: Callable[[], object]) -> None:
        try:
            with self._directory.lock(_LOCK_WAIT_S):
                work()
        except OSError as error:
            raise StoreError(f"{self._directory.path}: {error.strerror or error}") from error

    def _warn_of_full_disk(self) -> None:
        if self._budget == UNLIMITED:
            return
        held = sum(each.use.size for each in self._segments.values())
        free = self._directory.free_bytes()
        if self._budget - held > free:
            logger.warning(
                "the prefix store in %s may have %.1f GB, and the disk has room for %.1f GB: give it a smaller budget",
                self._directory.path,
                self._budget / 1e9,
                (held + free) / 1e9,
            )

    # what it tells

    def stats(self) -> Stats:
        """What the store holds, and what has been read and written."""
        with self._changing:
            held = sum(each.use.size for each in self._segments.values())
            counts = {name: getattr(self._counts, name) for name in _Counts.__slots__}
            return Stats(held, self._budget, len(self._index), len(self._segments), **counts)

    def segments(self) -> list[SegmentFacts]:
        """All segments, the last used first."""
        with self._changing:
            facts = [
                SegmentFacts(
                    each.name,
                    each.header.label,
                    each.header.namespace,
                    each.use.size,
                    each.num_blocks,
                    each.use.used_at,
                    max(each.use.leases.values(), default=0.0),
                    each.is_sealed,
                )
                for each in self._segments.values()
            ]
        return sorted(facts, key=lambda each: -each.used_at)

    def verify(self) -> Iterator[tuple[str, int, str]]:
        """Read every block of every segment; yield segment, offset and reason of each that is damaged, and forget it."""
        with self._changing:
            known = list(self._segments.values())
        for each in known:
            for block in map(each.block, range(each.num_blocks)):
                content = [memoryview(bytearray(block.length))]
                try:
                    count, reason = segment.read_blocks(self._files.open(each.name), [block], [content])
                except FileNotFoundError:
                    break
                except OSError as error:
                    count, reason = 0, error.strerror or str(error)
                if not count:
                    with self._changing:
                        self._counts.damaged += 1
                        self._forget(each, block)
                    yield each.name, block.offset, reason

    def close(self) -> None:
        """Seal what this process was writing, and write down what was used. Nothing is written afterwards."""
        with self._writing:
            self._is_closed = True
            while self._active:
                self._seal(self._active.popitem()[1])
            with suppress(OSError):
                self._write_uses(after_s=0.0)
            self._files.close()

    def _tell(self, what: str, *, repeat: bool = False) -> None:
        """Log a line, unless the same was logged a short time ago."""
        now = time.monotonic()
        with self._changing:
            if not repeat and now - self._told.get(what, -_SAME_TROUBLE_S) < _SAME_TROUBLE_S:
                return
            self._told = {each: when for each, when in self._told.items() if now - when < _SAME_TROUBLE_S}
            self._told[what] = now
        logger.warning("prefix store: %s", what)

    # segments in memory

    def _new_number(self) -> int:
        with self._changing:
            self._next_number += 1
            return self._next_number

    def _add(self, added: Segment) -> None:
        self._segments[added.number] = added
        self._numbers[added.name] = added.number
        self._index.add(added.number, added.entries)

    def _drop(self, dropped: Segment) -> None:
        with self._changing:
            if self._segments.pop(dropped.number, None) is not None:
                del self._numbers[dropped.name]
                self._index.remove(dropped.number, dropped.entries)
        self._files.forget(dropped.name)

    def _forget(self, holder: Segment, block: Block) -> None:
        position = next(i for i in range(holder.num_blocks) if holder.block(i).offset == block.offset)
        self._index.forget(block.key, place(holder.number, position))

    def _is_at(self, holder: Segment, block: Block) -> bool:
        found = self._find(block.key)
        return found is not None and found[0] is holder and found[1].offset == block.offset


def _size(parts: Sequence[memoryview]) -> int:
    return sum(part.nbytes for part in parts)
