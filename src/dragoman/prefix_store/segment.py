"""A segment: one file, to which one process appends blocks, and which all processes read; and the file's format.

Called by `store`, which lets one thread at a time change a segment. A block is synced to the disk only when its segment
is sealed: written blocks survive the process, and after a power failure the checksums show lost ones.
docs/prefix_store.md has the format in a table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from dragoman.prefix_store.directory import StoreDirectory, StoreFile

Key = bytes  # 16 bytes that name a block's whole content
Part = bytes | bytearray | memoryview | np.ndarray[Any, Any]
Content = Part | Sequence[Part]

KEY_BYTES = 16
VERSION = 1
HEADER_BYTES = 1024
LABEL_BYTES = 400  # of UTF-8; longer ones are cut

_MAGIC = b"dragoman prefix\n"
_HEADER = struct.Struct("<16sIIQ16sH")
_CHECKED_BYTES = 496  # of the header; its checksum follows
_DIGEST_BYTES = 16
_LEASES_OFFSET = 512
_LEASE = struct.Struct("<8sQ")  # group, end in milliseconds; its checksum follows
_LEASE_BYTES = _LEASE.size + 8
NUM_LEASES = (HEADER_BYTES - _LEASES_OFFSET) // _LEASE_BYTES

_BLOCK_MARK = b"block 1\n"
_BLOCK = struct.Struct("<8s16sQ16s")
BLOCK_HEADER_BYTES = _BLOCK.size + 8

ENTRY = struct.Struct("<16sQQ")
ENTRY_DTYPE = np.dtype([("key", "V16"), ("offset", "<u8"), ("length", "<u8")])

_FOOTER_MARK = b"sealed1\n"
_FOOTER = struct.Struct("<8sQQ")
FOOTER_BYTES = _FOOTER.size + _DIGEST_BYTES

_TAIL_BYTES = 32 << 10  # the index of 64 MB of blocks of 64 kB and more is read at once
_MAX_VECTORS = 1024  # IOV_MAX
_Transfer = Callable[[Sequence[memoryview], int], int]


class NotYet(Exception):
    """A file is too short for a header: its process is about to write it, or died before."""


class Unknown(Exception):
    """A file is of another version, or its header is damaged."""


@dataclass(frozen=True, slots=True)
class Header:
    """The constant facts of a segment. `capacity`: its largest size in bytes, with the index."""

    capacity: int
    namespace: bytes = bytes(KEY_BYTES)
    label: str = ""


@dataclass(slots=True)
class Use:
    """The uses of a segment. `leases`: the end of each group's lease, by `group_digest`."""

    name: str
    size: int
    used_at: float
    leases: dict[bytes, float] = field(default_factory=dict)

    def copy(self) -> Use:
        return Use(self.name, self.size, self.used_at, dict(self.leases))


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
        return self.end + BLOCK_HEADER_BYTES + num_bytes + index_bytes(self.num_blocks + 1) <= self.header.capacity


def smallest_capacity(num_bytes: int) -> int:
    return HEADER_BYTES + BLOCK_HEADER_BYTES + num_bytes + index_bytes(1)


def load(directory: StoreDirectory, name: str, number: int) -> Segment:
    """The segment in a file, by its index, else by its blocks' headers. Raises: NotYet, Unknown, OSError."""
    file = directory.open(name)
    facts = file.stat()
    first = file.pread(HEADER_BYTES, 0)
    if len(first) < HEADER_BYTES:
        raise NotYet(name)
    header = unpack_header(first)
    if header is None:
        raise Unknown(name)
    found = read_index(file, facts.st_size)
    entries, end = found or scan(file, HEADER_BYTES, facts.st_size)
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
    entries, end = scan(file, known.end, size)
    return Growth(entries, end, size, read_index(file, size) is not None)


def read_leases(directory: StoreDirectory, name: str) -> dict[bytes, float]:
    file = directory.open(name)
    return _leases(file.pread(HEADER_BYTES, 0))


def _leases(first: bytes) -> dict[bytes, float]:
    return dict(slot for slot in unpack_leases(first) if slot)


def write_use(directory: StoreDirectory, use: Use, now: float) -> int:
    """Write down last use and leases; returns the file's time of change in ns. Raises: OSError.

    A group's lease goes into its slot, or an empty one, or the one that ends first.
    """
    if use.leases:
        file = directory.open(use.name, writes=True)
        slots = unpack_leases(file.pread(HEADER_BYTES, 0))
        ends = [slot[1] if slot and slot[1] > now else 0.0 for slot in slots]
        places = {slot[0]: number for number, slot in enumerate(slots) if slot}
        for group, until in use.leases.items():
            number = places.get(group, ends.index(min(ends)))
            if until > ends[number]:
                ends[number] = until
                write_all(file, [memoryview(pack_lease(group, until))], lease_offsets()[number])
    directory.set_time(use.name, use.used_at)
    return directory.stat(use.name).st_mtime_ns


def begin(directory: StoreDirectory, number: int, header: Header, now: float) -> Segment:
    """A new segment, locked by this process. Raises: OSError, without leaving a file."""
    name, file = directory.create()
    try:
        file.try_lock()
        write_all(file, [memoryview(pack_header(header))], 0)
    except OSError:
        with suppress(OSError):
            directory.delete(name)
        raise
    return Segment(number, header, Use(name, HEADER_BYTES, now), bytearray(), HEADER_BYTES, False, writer=file)


def append(segment: Segment, key: Key, parts: Sequence[memoryview]) -> None:
    """Raises: OSError; the segment is unchanged then."""
    assert segment.writer is not None
    try:
        header = pack_block_header(key, parts)
        write_all(segment.writer, [memoryview(header), *parts], segment.end)
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
        index = pack_index(segment.entries, segment.end)
        write_all(file, [memoryview(index)], segment.end)
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
    left = read_all(file, views, blocks[0].offset)
    for count, (start, block, parts) in enumerate(zip(starts, blocks, into, strict=True)):
        left -= BLOCK_HEADER_BYTES + block.length
        if left < 0:
            return count, "it cannot be read whole"
        if start != pack_block_header(block.key, parts):
            return count, "its checksum is wrong"
    return len(blocks), ""


# --- the format -------------------------------------------------------------------------------------------------------
# A content's checksum has 128 bits (XXH3): 32 bits would pass one of four billion damaged blocks, and a wrong block
# silently gives wrong answers. It protects from accidents, not forgery: only this user may write to the directory.


def pack_header(header: Header) -> bytes:
    label = header.label.encode(errors="replace")[:LABEL_BYTES]
    facts = _HEADER.pack(_MAGIC, VERSION, HEADER_BYTES, header.capacity, header.namespace, len(label)) + label
    facts = facts.ljust(_CHECKED_BYTES, b"\0")
    return (facts + xxhash.xxh3_128_digest(facts)).ljust(HEADER_BYTES, b"\0")


def unpack_header(data: bytes) -> Header | None:
    facts = data[:_CHECKED_BYTES]
    if len(data) < HEADER_BYTES or xxhash.xxh3_128_digest(facts) != data[_CHECKED_BYTES:_LEASES_OFFSET]:
        return None
    magic, version, header_bytes, capacity, namespace, label_bytes = _HEADER.unpack_from(facts)
    if (magic, version, header_bytes) != (_MAGIC, VERSION, HEADER_BYTES):
        return None
    label = facts[_HEADER.size : _HEADER.size + label_bytes].decode(errors="replace")
    return Header(capacity, namespace, label)


def group_digest(group: bytes) -> bytes:
    """The 8 bytes that name a group in leases."""
    digest: bytes = xxhash.xxh3_64_digest(group)
    return digest


def unpack_leases(header: bytes) -> list[tuple[bytes, float] | None]:
    """The group and end of the lease in each slot of a segment's first bytes; None for an empty or torn slot."""
    leases: list[tuple[bytes, float] | None] = []
    for offset in lease_offsets():
        slot = header[offset : offset + _LEASE.size]
        is_whole = xxhash.xxh3_64_digest(slot) == header[offset + _LEASE.size : offset + _LEASE_BYTES]
        group, until_ms = _LEASE.unpack(slot) if is_whole else (b"", 0)
        leases.append((group, until_ms / 1000) if is_whole else None)
    return leases


def pack_lease(group: bytes, until: float) -> bytes:
    slot = _LEASE.pack(group, min(max(int(until * 1000), 0), 2**63))
    return slot + xxhash.xxh3_64_digest(slot)


def lease_offsets() -> range:
    return range(_LEASES_OFFSET, _LEASES_OFFSET + NUM_LEASES * _LEASE_BYTES, _LEASE_BYTES)


def flat_parts(content: Content) -> list[memoryview]:
    """A block's content as flat views of its bytes. Raises: ValueError if an array is not contiguous."""
    return [_flat(part) for part in content] if isinstance(content, list | tuple) else [_flat(content)]  # type: ignore[arg-type]


def _flat(part: Part) -> memoryview:
    if isinstance(part, np.ndarray):  # by numpy, since no memoryview has bfloat16
        if not part.flags.c_contiguous:
            raise ValueError(f"a block's array must be contiguous, got strides {part.strides} for shape {part.shape}")
        return part.reshape(-1).view(np.uint8).data
    view = memoryview(part)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def pack_block_header(key: Key, parts: Sequence[memoryview]) -> bytes:
    length = sum(part.nbytes for part in parts)
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    header = _BLOCK.pack(_BLOCK_MARK, key, length, digest.digest())
    return header + xxhash.xxh3_64_digest(header)


def unpack_block_header(data: bytes) -> tuple[Key, int] | None:
    """The key and length in a block's header, None for other bytes."""
    if len(data) != BLOCK_HEADER_BYTES or xxhash.xxh3_64_digest(data[: _BLOCK.size]) != data[_BLOCK.size :]:
        return None
    mark, key, length, _ = _BLOCK.unpack_from(data)
    return (key, length) if mark == _BLOCK_MARK else None


def pack_index(entries: bytes | bytearray, offset: int) -> bytes:
    footer = _FOOTER.pack(_FOOTER_MARK, offset, len(entries) // ENTRY.size)
    digest = xxhash.xxh3_128(entries)
    digest.update(footer)
    return bytes(entries) + footer + digest.digest()


def index_bytes(num_blocks: int) -> int:
    return num_blocks * ENTRY.size + FOOTER_BYTES


def read_index(file: StoreFile, size: int) -> tuple[bytearray, int] | None:
    """The entries of a sealed segment's index and its offset; None without a complete index. Raises: OSError."""
    begin = max(size - _TAIL_BYTES, 0)
    tail = file.pread(size - begin, begin)
    if len(tail) < max(FOOTER_BYTES, size - begin):
        return None
    mark, offset, count = _FOOTER.unpack_from(tail, len(tail) - FOOTER_BYTES)
    if mark != _FOOTER_MARK or offset + index_bytes(count) != size:
        return None
    if offset < begin:
        tail = file.pread(begin - offset, offset) + tail
        begin = offset
    checked = tail[offset - begin : len(tail) - _DIGEST_BYTES]
    if xxhash.xxh3_128_digest(checked) != tail[-_DIGEST_BYTES:]:
        return None
    return bytearray(checked[: count * ENTRY.size]), offset


def scan(file: StoreFile, begin: int, size: int) -> tuple[bytearray, int]:
    """The entries of all complete blocks between `begin` and `size`, and the end of the last. Raises: OSError."""
    entries = bytearray()
    while begin + BLOCK_HEADER_BYTES <= size:
        found = unpack_block_header(file.pread(BLOCK_HEADER_BYTES, begin))
        if found is None or begin + BLOCK_HEADER_BYTES + found[1] > size:
            break
        entries += ENTRY.pack(found[0], begin, found[1])
        begin += BLOCK_HEADER_BYTES + found[1]
    return entries, begin


def read_all(file: StoreFile, views: Sequence[memoryview], offset: int) -> int:
    """Returns the number of bytes read. Raises: OSError if the first read fails."""
    return _transfer(file.preadv, views, offset, partly=True)


def write_all(file: StoreFile, views: Sequence[memoryview], offset: int) -> None:
    """Raises: OSError if a part could not be written."""
    _transfer(file.pwritev, views, offset, partly=False)


def _transfer(call: _Transfer, views: Sequence[memoryview], offset: int, *, partly: bool) -> int:
    """The number of transferred bytes. `partly`: an error after the first bytes ends the transfer, and is not raised."""
    waiting = [view for view in reversed(views) if view.nbytes]
    total = 0
    while waiting:
        try:
            count = call(waiting[: -_MAX_VECTORS - 1 : -1], offset + total)
        except OSError:
            if partly and total:
                return total
            raise
        if not count:
            return total
        total += count
        while count:
            view = waiting.pop()
            if count < view.nbytes:
                waiting.append(view[count:])
                break
            count -= view.nbytes
    return total
