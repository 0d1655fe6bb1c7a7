"""The bytes of a segment: its header, its blocks, the index at its end. docs/prefix_store.md has the same in a table.

A content's checksum has 128 bits (XXH3): 32 bits would pass one of four billion damaged blocks, and a wrong block
silently gives wrong answers. It protects from accidents, not forgery: only this user may write to the directory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from dragoman.prefix_store.file_system import StoreFile

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

_MAX_VECTORS = 1024  # IOV_MAX
_Transfer = Callable[[Sequence[memoryview], int], int]


@dataclass(frozen=True, slots=True)
class Header:
    """The constant facts of a segment. `capacity`: its largest size in bytes, with the index."""

    capacity: int
    namespace: bytes = bytes(KEY_BYTES)
    label: str = ""


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


_TAIL_BYTES = 32 << 10  # the index of 64 MB of blocks of 64 kB and more is read at once


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
