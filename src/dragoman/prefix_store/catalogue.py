"""The known contents of the directory: its segments and, by the index, their blocks. Called by `store`, on any thread.

Locks, in the order of taking them. `listing`: one thread at a time compares memory with the directory, or adds to it.
The directory's: one process at a time adds and deletes segments. `changing`: for the index and the segments in memory;
never held while waiting for the disk, since `touch` takes it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count

import numpy as np

from dragoman.prefix_store import segment
from dragoman.prefix_store.directory import Busy, Facts, StoreDirectory, StoreFile
from dragoman.prefix_store.segment import ENTRY, ENTRY_DTYPE, Block, Header, Key, NotYet, Segment, Unknown, Use

logger = logging.getLogger("dragoman.prefix_store")

LOCK_WAIT_S = 2.0
_LEASED_PART = 0.5  # of the budget
_NUMBER_SHIFT = 32  # a place is a segment's number and the block's position in its entries
_WRITE_USE_AFTER_S = 30.0  # between two writes of last use and leases
_SAME_TROUBLE_S = 60.0  # before the log repeats a reason
_MAX_OPEN = 32  # files
_CLOCK_TICK_NS = 2_000_000_000  # file systems' times may be this coarse


class _OpenFiles:
    """The most recently used segment files, so that a store of 1,600 segments needs few descriptors. On any thread."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._directory = directory
        self._files: dict[str, StoreFile] = {}  # the most recently used last
        self._lock = threading.Lock()

    def open(self, name: str) -> StoreFile:
        with self._lock:
            file = self._files.pop(name, None) or self._directory.open(name)
            self._files[name] = file
            if len(self._files) > _MAX_OPEN:
                del self._files[next(iter(self._files))]
        return file

    def forget(self, name: str) -> None:
        """Drop a file, which closes after its last reader."""
        with self._lock:
            self._files.pop(name, None)

    def close(self) -> None:
        with self._lock:
            self._files.clear()


class Catalogue:
    """Segments and index in memory. `clock` gives seconds since 1970."""

    def __init__(self, directory: StoreDirectory, clock: Callable[[], float]) -> None:
        self.directory = directory
        self.files = _OpenFiles(directory)
        self.index = Index()
        self.listing = threading.RLock()
        self.changing = threading.RLock()
        self._clock = clock
        self._segments: dict[int, Segment] = {}
        self._numbers: dict[str, int] = {}  # of segments by name
        self._unknown: set[str] = set()  # names of unreadable files: of other versions, or damaged
        self._new_numbers = count(1)
        self._listed_ns = 0  # the directory's time of change at the last listing; 0 = list it again
        self._told: dict[str, float] = {}

    # in memory

    def segments(self) -> list[Segment]:
        with self.changing:
            return list(self._segments.values())

    def unknown(self) -> list[str]:
        """The names of unusable files: of other versions, or damaged at their beginning."""
        return sorted(self._unknown)

    def holds(self, known: Segment) -> bool:
        return known.number in self._segments

    def find(self, key: Key) -> tuple[Segment, Block] | None:
        """Call with `changing`."""
        found = self.index.place_of(key)
        if found is None:
            return None
        number, position = split(found)
        return self._segments[number], self._segments[number].block(position)

    def drop(self, gone: Segment) -> None:
        with self.changing:
            if self._segments.pop(gone.number, None) is not None:
                del self._numbers[gone.name]
                self.index.remove(gone.number, gone.entries)
        self.files.forget(gone.name)

    def forget(self, holder: Segment, blocks: Sequence[Block]) -> None:
        with self.changing:
            if self.holds(holder):
                for block in blocks:
                    self.index.forget(block.key, place(holder.number, block.position))

    def mark_used(self, used: Segment, keep_until: float | None = None, group: bytes = b"") -> None:
        used.use.used_at = self._clock()
        used.is_use_unwritten = True
        if keep_until is not None:
            digest = segment.group_digest(group)
            used.use.leases[digest] = max(keep_until, used.use.leases.get(digest, 0.0))

    def _named(self, name: str) -> Segment | None:
        with self.changing:
            number = self._numbers.get(name)
            return None if number is None else self._segments[number]

    def _add(self, added: Segment) -> None:
        with self.changing:
            self._segments[added.number] = added
            self._numbers[added.name] = added.number
            self.index.add(added.number, added.entries)

    # what is in the directory

    def open(self, budget_bytes: int) -> None:
        with self.listing:
            try:
                with self.directory.lock(LOCK_WAIT_S):
                    self._list()
                    self._finish_abandoned()
                    self._make_room(0, budget_bytes)
            except Busy:  # the next start will do it
                self._list()

    def refresh(self) -> None:
        """Take in other processes' changes, and record uses of this one. Raises: OSError."""
        if not self.listing.acquire(blocking=False):
            return  # another thread is doing it
        try:
            if self.directory.changed_ns() != self._listed_ns:
                self._list()
            for each in self.segments():
                if not each.is_sealed and each.writer is None:
                    self._load_growth(each)
            self.write_uses()
        finally:
            self.listing.release()

    def _list(self) -> None:
        """Call with `listing`. Raises: OSError."""
        known = self.segments()
        changed_ns = self.directory.changed_ns()
        is_settled = abs(time.time_ns() - changed_ns) > _CLOCK_TICK_NS  # else a later change could have the same time
        names = self.directory.names()
        there = set(names)
        for each in known:
            if each.name not in there:
                self.drop(each)
        self._unknown = self._unknown & there
        for name in names:
            if name not in self._numbers and name not in self._unknown:
                is_settled &= self._load(name)
        self._listed_ns = changed_ns if is_settled else 0

    def _load(self, name: str) -> bool:
        """Load a segment; False to try again later: its process has not written the header yet."""
        try:
            self._add(segment.load(self.directory, name, next(self._new_numbers)))
        except FileNotFoundError:
            pass
        except NotYet:
            return False
        except (Unknown, OSError) as error:
            why = "it is of another version, or damaged" if isinstance(error, Unknown) else reason_of(error)
            self.tell(f"{name} is not used: {why}")
            self._unknown.add(name)
        return True

    def _load_growth(self, growing: Segment) -> None:
        try:
            grown = segment.load_growth(self.directory, growing)
        except FileNotFoundError:
            self.drop(growing)
            return
        except OSError as error:
            self.tell(f"{growing.name} cannot be read: {reason_of(error)}")
            return
        if grown is not None:
            with self.changing:
                first = growing.num_blocks
                growing.take(grown)
                self.index.add(growing.number, growing.entries, first)

    def _finish_abandoned(self) -> None:
        """Seal segments of killed processes, to avoid further scans. Call with the directory's lock."""
        for name in self.directory.names():
            if name not in self._numbers and name not in self._unknown:  # its header was never written
                with suppress(OSError):
                    self.directory.delete(name)
        for each in self.segments():
            if not each.is_sealed:
                with suppress(OSError):
                    self._finish(each)

    def _finish(self, abandoned: Segment) -> None:
        file = self.directory.open(abandoned.name, writes=True)
        if not file.try_lock():
            return  # its process is alive
        self._load_growth(abandoned)  # it may have just ended
        if not abandoned.num_blocks:
            self.directory.delete(abandoned.name)
            self.drop(abandoned)
        elif not abandoned.is_sealed:
            segment.seal(self.directory, abandoned, file, sync=False)

    def begin(self, header: Header, budget_bytes: int) -> Segment | None:
        with self.listing, self.directory.lock(LOCK_WAIT_S):
            if not self._make_room(header.capacity, budget_bytes):
                return None
            begun = segment.begin(self.directory, next(self._new_numbers), header, self._clock())
            self._add(begun)
            return begun

    # use

    def write_uses(self, *, after_s: float = _WRITE_USE_AFTER_S) -> None:
        """Write last use and leases of segments to the disk, at most every `after_s` for each."""
        now = self._clock()
        due = [each for each in self.segments() if each.is_use_unwritten and now - each.use_written_at >= after_s]
        if due:
            with suppress(OSError), self.directory.lock(0.0 if after_s else LOCK_WAIT_S):
                for each in due:
                    self.write_use(each)

    def write_use(self, used: Segment) -> None:
        """Errors do not matter, as this only improves deletion."""
        now = self._clock()
        with self.changing:
            used.is_use_unwritten = False
            used.use_written_at = now
            used.use.leases = {group: until for group, until in used.use.leases.items() if until > now}
            use = used.use.copy()
        with suppress(OSError):
            used.seen_ns = segment.write_use(self.directory, use, now)

    # room

    def make_room(self, budget_bytes: int, *, everything: bool = False) -> None:
        """Delete down to the budget, or `everything`. Raises: OSError."""
        with self.listing, self.directory.lock(LOCK_WAIT_S):
            self._make_room(0, budget_bytes, everything=everything)

    def _make_room(self, num_bytes: int, budget_bytes: int, *, everything: bool = False) -> bool:
        """Delete until `num_bytes` fit into the budget. False, without a deletion, if they never can.

        A segment that a process is writing counts with its capacity, and stays, except for `everything`. Call with
        `listing` and the directory's lock. Raises: OSError.
        """
        left, segments, unknown = self._survey(spare_written=not everything)
        with self.changing:
            uses = [each.use.copy() for each in segments]
        victims = sorted(unknown, key=lambda use: use.used_at)
        victims += first_to_go(uses, budget_bytes, self._clock())
        if num_bytes and num_bytes > budget_bytes - left + sum(victim.size for victim in victims):
            return False  # delete nothing in vain
        for victim in victims:
            if left + num_bytes <= budget_bytes and not everything:
                break
            self.directory.delete(victim.name)
            left -= victim.size
            if (known := self._named(victim.name)) is not None:
                self.drop(known)
        return True

    def _survey(self, *, spare_written: bool) -> tuple[int, list[Segment], list[Use]]:
        """All bytes in the directory, and what may be deleted: segments and unusable files."""
        self._list()
        total = 0
        segments: list[Segment] = []
        unknown: list[Use] = []
        for name in self.directory.names():
            with suppress(FileNotFoundError):
                known = self._named(name)
                is_spared = spare_written and not (known and known.is_sealed) and self._is_written(name)
                facts = self.directory.stat(name)
                size = facts.st_size
                if known is not None:
                    self._take_use(known, facts)
                    if is_spared:
                        size = max(size, known.header.capacity)
                    else:
                        segments.append(known)
                elif not is_spared:
                    unknown.append(Use(name, size, facts.st_mtime))
                total += size
        return total, segments, unknown

    def _take_use(self, known: Segment, facts: Facts) -> None:
        """Take in other processes' last use and leases of a segment. Raises: OSError."""
        is_changed = facts.st_mtime_ns != known.seen_ns
        leases = segment.read_leases(self.directory, known.name) if is_changed else {}
        with self.changing:
            known.seen_ns = facts.st_mtime_ns
            if known.writer is None:
                known.use.size = facts.st_size
            if is_changed:
                known.use.used_at = max(known.use.used_at, facts.st_mtime)
            for group, until in leases.items():
                known.use.leases[group] = max(until, known.use.leases.get(group, 0.0))

    def _is_written(self, name: str) -> bool:
        """True if a process, perhaps this one, is appending to the file. Raises: FileNotFoundError."""
        try:
            return not self.directory.open(name).try_lock()
        except FileNotFoundError:
            raise
        except OSError:
            return False

    def tell(self, what: str) -> None:
        now = time.monotonic()
        with self.changing:
            if now - self._told.get(what, -_SAME_TROUBLE_S) < _SAME_TROUBLE_S:
                return
            self._told = {each: when for each, when in self._told.items() if now - when < _SAME_TROUBLE_S}
            self._told[what] = now
        logger.warning("prefix store: %s", what)


def reason_of(error: OSError) -> str:
    return error.strerror or str(error)


# --- the index --------------------------------------------------------------------------------------------------------


def place(number: int, position: int) -> int:
    return number << _NUMBER_SHIFT | position


def split(found: int) -> tuple[int, int]:
    return found >> _NUMBER_SHIFT, found & (1 << _NUMBER_SHIFT) - 1


class Index:
    """The index in memory: the segment of each block, and its position there. One thread at a time may change it.

    A place is one integer, so that 500,000 blocks (100 GB) cost 80 MB. A block that two segments hold is found in the
    one added last, or in the other when that one is gone or damaged.
    """

    def __init__(self) -> None:
        self._places: dict[Key, int] = {}
        self._others: dict[Key, list[int]] = {}  # further places of the same blocks, usually none

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def place_of(self, key: Key) -> int | None:
        return self._places.get(key)

    def add(self, number: int, entries: bytes | bytearray, first: int = 0) -> None:
        """Add a segment's blocks from position `first` on."""
        keys = _keys(entries, first)
        begin = place(number, first)
        if not self._places.keys().isdisjoint(keys):
            for position, key in enumerate(keys):
                if (known := self._places.get(key)) is not None:
                    self._others.setdefault(key, []).append(known)
                self._places[key] = begin + position
        else:
            self._places.update(zip(keys, range(begin, begin + len(keys)), strict=True))

    def remove(self, number: int, entries: bytes | bytearray) -> None:
        for position, key in enumerate(_keys(entries, 0), place(number, 0)):
            self.forget(key, position)

    def forget(self, key: Key, lost: int) -> None:
        """Remove this place of a block; another place of it takes over."""
        others = self._others.get(key)
        if self._places.get(key) == lost:
            if others:
                self._places[key] = others.pop()
            else:
                del self._places[key]
        elif others and lost in others:
            others.remove(lost)
        if others is not None and not others:
            del self._others[key]


def _keys(entries: bytes | bytearray, first: int) -> list[Key]:
    keys: list[Key] = np.frombuffer(bytes(entries[first * ENTRY.size :]), ENTRY_DTYPE)["key"].tolist()
    return keys


# --- deletion ---------------------------------------------------------------------------------------------------------


def first_to_go(uses: Iterable[Use], budget_bytes: int, now: float) -> list[Use]:
    """The order in which segments are deleted when room is needed: by last use and leases.

    A lease keeps a segment of a group (a caller) beyond its turn. Leases hold at most half of the budget, and each group
    with leases has an equal part of that half. A segment with leases of several groups costs each of them its share.
    """
    oldest_first = sorted(uses, key=lambda use: (min(use.used_at, now), use.name))
    held = _held(oldest_first, budget_bytes * _LEASED_PART, now)
    return [use for use in oldest_first if use.name not in held] + [use for use in oldest_first if use.name in held]


def _held(oldest_first: list[Use], bytes_for_leases: float, now: float) -> set[str]:
    leased = [(use, groups) for use in reversed(oldest_first) if (groups := _groups(use, now))]
    paid: dict[bytes, float] = {group: 0.0 for _, groups in leased for group in groups}
    share = bytes_for_leases / max(len(paid), 1)
    held: set[str] = set()
    total = 0
    for use, groups in leased:
        part = use.size / len(groups)
        paying = [group for group in groups if paid[group] + part <= share]
        if paying and total + use.size <= bytes_for_leases:
            held.add(use.name)
            total += use.size
            for group in paying:
                paid[group] += part
    return held


def _groups(use: Use, now: float) -> list[bytes]:
    return [group for group, until in use.leases.items() if until > now]
