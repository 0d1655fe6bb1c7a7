"""Unpacks the bodies of requests that clients have packed.

Does: gzip and deflate, in pieces that count as they come, within the limit of a body and a bounded ratio; away from the
event loop where that takes time. Does not: pack answers. Called by the endpoints, on the event loop, once a body was
read and its signature, which covers the packed bytes, was checked. Source: RFC 9110, 8.4 and 15.5.16; RFC 1950 to 1952.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from functools import partial

from dragoman.errors import InvalidPayload, TooLarge, UnsupportedCoding
from dragoman.server.http.bodies import Body

TAKEN = ("gzip", "deflate")
MAX_RATIO = 100  # unpacked to packed bytes; JSON reaches 20, what reaches 1,000 was made for it
FREE_BYTES = 1 << 20  # that may come of any body, however few bytes it has
MAX_MEMBERS = 16  # of gzip, one behind the other

_PIECE_BYTES = 1 << 20
_SLICE_BYTES = 256 * 1024  # packed, that are looked at together
_INLINE_BYTES = 8 * 1024  # packed: nothing that unpacks to more than `FREE_BYTES`
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


async def unpacked(body: bytes, headers: Mapping[str, str], max_size_bytes: int, held: Body) -> bytes:
    """The body as it was before its client packed it.

    Raises: UnsupportedCoding, InvalidPayload for bytes that are not packed so, TooLarge, Overloaded.
    """
    named = headers.get("content-encoding", "").strip().lower()
    if not named or named == "identity" or not body:
        return body
    coding = named.removeprefix("x-")
    if coding not in TAKEN:
        raise UnsupportedCoding(f"Content-Encoding must be {' or '.join(TAKEN)}, got {named[:40]!r}", ", ".join(TAKEN))
    most = min(max_size_bytes, max(FREE_BYTES, MAX_RATIO * len(body)))
    is_small = len(body) <= _INLINE_BYTES
    pieces: list[bytes] = []
    size = begin = num_members = 0
    unpacker, left, is_full = None, b"", False
    while True:
        if not left and not is_full:
            left = body[begin : begin + _SLICE_BYTES]
            begin += len(left)
        if not left and not is_full:
            break
        if unpacker is None:
            num_members += 1
            unpacker = zlib.decompressobj(_bits(coding, left))
        try:
            work = partial(unpacker.decompress, left, _PIECE_BYTES)
            piece = work() if is_small else await asyncio.to_thread(work)
        except zlib.error as error:
            raise InvalidPayload(f"The body is not {coding}, as Content-Encoding says: {error}") from error
        size += len(piece)
        if size > most:
            raise _too_large(size, most, max_size_bytes)
        held.add(len(piece))
        pieces.append(piece)
        left, is_full = unpacker.unconsumed_tail, len(piece) == _PIECE_BYTES
        if unpacker.eof:
            left, is_full, unpacker = unpacker.unused_data, False, None
            if (left or begin < len(body)) and (coding != "gzip" or num_members == MAX_MEMBERS):
                raise InvalidPayload(f"The body has bytes behind what was packed as {coding}")
    if unpacker is not None:
        raise InvalidPayload(f"The body is not all of what was packed as {coding}: its end is missing")
    return b"".join(pieces)


def _bits(coding: str, packed: bytes) -> int:
    """How zlib is told of the form; some clients send deflate without the head that belongs to it."""
    if coding == "gzip":
        return _GZIP
    has_head = len(packed) > 1 and packed[0] & 15 == 8 and int.from_bytes(packed[:2]) % 31 == 0
    return _ZLIB if has_head else _RAW


def _too_large(size: int, most: int, max_size_bytes: int) -> TooLarge:
    if most == max_size_bytes:
        return TooLarge(f"The request body has at least {size} bytes unpacked, at most {most} are allowed")
    return TooLarge(
        f"The request body has at least {size} bytes unpacked, more than {MAX_RATIO} times what it has packed"
    )
