"""A segment: one file, to which one process appends blocks, and which all processes read.

Called by `store`, which lets one thread at a time change a segment. A block is synced to the disk only when its segment
is sealed: written blocks survive the process, and after a power failure the checksums show lost ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from dragoman.prefix_store import layout
from dragoman.prefix_store.file_system import StoreDirectory, StoreFile
from dragoman.prefix_store.layout import BLOCK_HEADER_BYTES, ENTRY, HEADER_BYTES, Header, Key
from dragoman.prefix_store.retention import Use


class NotYet(Exception):
    """A file is too short for a header: its process is about to write it, or died before."""


class Unknown(Exception):
    """A file is of another version, or its header is damaged."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block's place. `offset`: of its header; `length`: of its content."""

    key: Key
    offset: int
    length: int
    position: int

    @property
    def end(self) -> int:
        return self.offset + BLOCK_HEADER_BYTES + self.length


@dataclass(slots=True)
class Segment:
    """`end`: of its last complete block; `writer`: the open file of the appending process."""

    number: int
    header: Header
    use: Use
    entries: bytearray
    end: int
    is_sealed: bool
    seen_ns: int = 0  # the file's time of change at the last read of leases and last use
    writer: StoreFile | None = None
    is_use_unwritten: bool = False  # last use and leases are not on the disk yet
    use_written_at: float = 0.0
    appended_at: float = 0.0  # by this process

    @property
    def name(self) -> str:
        return self.use.name

    @property
    def num_blocks(self) -> int:
        return len(self.entries) // ENTRY.size

    def block(self, position: int) -> Block:
        key, offset, length = ENTRY.unpack_from(self.entries, position * ENTRY.size)
        return Block(key, offset, length, position)

    def take(self, growth: Growth) -> None:
        self.entries += growth.entries
        self.end = growth.end
        self.use.size = growth.size
        self.is_sealed = growth.is_sealed

    def has_room(self, num_bytes: int) -> bool:
        """True if a block of `num_bytes` fits, with its header and its entry in the index."""
        return (
            self.end + BLOCK_HEADER_BYTES + num_bytes + layout.index_bytes(self.num_blocks + 1) <= self.header.capacity
        )


def smallest_capacity(num_bytes: int) -> int:
    return HEADER_BYTES + BLOCK_HEADER_BYTES + num_bytes + layout.index_bytes(1)


def load(directory: StoreDirectory, name: str, number: int) -> Segment:
    """The segment in a file, by its index, else by its blocks' headers. Raises: NotYet, Unknown, OSError."""
    file = directory.open(name)
    facts = file.stat()
    first = file.pread(HEADER_BYTES, 0)
    if len(first) < HEADER_BYTES:
        raise NotYet(name)
    header = layout.unpack_header(first)
    if header is None:
        raise Unknown(name)
    found = layout.read_index(file, facts.st_size)
    entries, end = found or layout.scan(file, HEADER_BYTES, facts.st_size)
    use = Use(name, facts.st_size, facts.st_mtime, _leases(first))
    return Segment(number, header, use, entries, end, found is not None, facts.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Growth:
    entries: bytearray
    end: int
    size: int
    is_sealed: bool


def load_growth(directory: StoreDirectory, known: Segment) -> Growth | None:
    """Newly appended blocks of another process, or None. Raises: OSError."""
    size = directory.stat(known.name).st_size
    if size == known.use.size:
        return None
    file = directory.open(known.name)
    entries, end = layout.scan(file, known.end, size)
    return Growth(entries, end, size, layout.read_index(file, size) is not None)


def read_leases(directory: StoreDirectory, name: str) -> dict[bytes, float]:
    file = directory.open(name)
    return _leases(file.pread(HEADER_BYTES, 0))


def _leases(first: bytes) -> dict[bytes, float]:
    return dict(slot for slot in layout.unpack_leases(first) if slot)


def write_use(directory: StoreDirectory, use: Use, now: float) -> int:
    """Write down last use and leases; returns the file's time of change in ns. Raises: OSError.

    A group's lease goes into its slot, or an empty one, or the one that ends first.
    """
    if use.leases:
        file = directory.open(use.name, writes=True)
        slots = layout.unpack_leases(file.pread(HEADER_BYTES, 0))
        ends = [slot[1] if slot and slot[1] > now else 0.0 for slot in slots]
        places = {slot[0]: number for number, slot in enumerate(slots) if slot}
        for group, until in use.leases.items():
            number = places.get(group, ends.index(min(ends)))
            if until > ends[number]:
                ends[number] = until
                layout.write_all(file, [memoryview(layout.pack_lease(group, until))], layout.lease_offsets()[number])
    directory.set_time(use.name, use.used_at)
    return directory.stat(use.name).st_mtime_ns


def begin(directory: StoreDirectory, number: int, header: Header, now: float) -> Segment:
    """A new segment, locked by this process. Raises: OSError, without leaving a file."""
    name, file = directory.create()
    try:
        file.try_lock()
        layout.write_all(file, [memoryview(layout.pack_header(header))], 0)
    except OSError:
        with suppress(OSError):
            directory.delete(name)
        raise
    return Segment(number, header, Use(name, HEADER_BYTES, now), bytearray(), HEADER_BYTES, False, writer=file)


def append(segment: Segment, key: Key, parts: Sequence[memoryview]) -> None:
    """Raises: OSError; the segment is unchanged then."""
    assert segment.writer is not None
    try:
        header = layout.pack_block_header(key, parts)
        layout.write_all(segment.writer, [memoryview(header), *parts], segment.end)
    except OSError:
        with suppress(OSError):  # an incomplete block at the end is overwritten
            segment.writer.truncate(segment.end)
        raise
    length = sum(part.nbytes for part in parts)
    segment.entries += ENTRY.pack(key, segment.end, length)
    segment.end += BLOCK_HEADER_BYTES + length
    segment.use.size = segment.end


def seal(directory: StoreDirectory, segment: Segment, file: StoreFile, *, sync: bool = True) -> None:
    """Write the index after the blocks. Raises: OSError; the segment is unchanged then."""
    try:
        file.truncate(segment.end)
        index = layout.pack_index(segment.entries, segment.end)
        layout.write_all(file, [memoryview(index)], segment.end)
        if sync:
            file.sync()
    except OSError:
        with suppress(OSError):
            file.truncate(segment.end)
        raise
    segment.is_sealed = True
    segment.use.size = segment.end + len(index)
    directory.set_time(segment.name, segment.use.used_at)


def read_blocks(file: StoreFile, blocks: Sequence[Block], into: Sequence[Sequence[memoryview]]) -> tuple[int, str]:
    """Read consecutive blocks; returns the number of intact ones, and the next one's problem. Raises: OSError."""
    if not blocks:
        return 0, ""
    headers = memoryview(bytearray(BLOCK_HEADER_BYTES * len(blocks)))
    starts = [headers[i : i + BLOCK_HEADER_BYTES] for i in range(0, len(headers), BLOCK_HEADER_BYTES)]
    views = [view for start, parts in zip(starts, into, strict=True) for view in (start, *parts)]
    left = layout.read_all(file, views, blocks[0].offset)
    for count, (start, block, parts) in enumerate(zip(starts, blocks, into, strict=True)):
        left -= BLOCK_HEADER_BYTES + block.length
        if left < 0:
            return count, "it cannot be read whole"
        if start != layout.pack_block_header(block.key, parts):
            return count, "its checksum is wrong"
    return len(blocks), ""
