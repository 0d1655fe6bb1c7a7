"""Bodies of requests: unpacks gzip, deflate and zstd with a bounded ratio, and takes multipart forms apart.

The endpoints unpack after they checked the body's signature, which covers the packed bytes; large bodies on threads.
Sources: RFC 9110, 8.4 and 15.5.16; RFC 1950 to 1952; RFC 8878 and 9659.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from python_multipart import FormParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, parse_options_header

from dragoman.errors import InvalidPayload, TooLarge, UnsupportedCoding
from dragoman.server.api import HttpCall
from dragoman.server.http.exchange import Body

TAKEN = ("gzip", "deflate", "zstd")
MAX_RATIO = 100  # unpacked to packed bytes; JSON reaches 20, what reaches 1,000 was made for it
FREE_BYTES = 1 << 20  # that may come of any body, however few bytes it has
MAX_MEMBERS = 16  # of gzip or zstd, one behind the other

_PIECE_BYTES = 1 << 20
_SLICE_BYTES = 256 * 1024  # packed, that are looked at together
_INLINE_BYTES = 8 * 1024  # packed: nothing that unpacks to more than `FREE_BYTES`
_ZSTD_WINDOW_LOG = 23  # 8 MB, which RFC 9659 lets a body ask for
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


async def unpacked(body: bytes, headers: Mapping[str, str], max_size_bytes: int, held: Body) -> bytes:
    """The unpacked body. Raises: UnsupportedCoding, InvalidPayload, TooLarge, Overloaded."""
    named = headers.get("content-encoding", "").strip().lower()
    if not named or named == "identity" or not body:
        return body
    coding = named.removeprefix("x-")
    if coding not in TAKEN:
        allowed = f"{', '.join(TAKEN[:-1])} or {TAKEN[-1]}"
        raise UnsupportedCoding(f"Content-Encoding must be {allowed}, got {named[:40]!r}", ", ".join(TAKEN))
    most = min(max_size_bytes, max(FREE_BYTES, MAX_RATIO * len(body)))
    is_small = len(body) <= _INLINE_BYTES
    pieces: list[bytes] = []
    size = begin = num_members = 0
    unpacker: Any = None
    malformed: type[Exception] = Exception
    left, is_full = b"", False
    while True:
        if not left and not is_full:
            left = body[begin : begin + _SLICE_BYTES]
            begin += len(left)
        if not left and not is_full:
            break
        if unpacker is None:
            num_members += 1
            unpacker, malformed = _unpacker(coding, left)
        try:
            work = partial(unpacker.decompress, left, _PIECE_BYTES)
            piece = work() if is_small else await asyncio.to_thread(work)
        except malformed as error:
            raise InvalidPayload(f"The body is not {coding}, although Content-Encoding says so: {error}") from error
        size += len(piece)
        if size > most:
            raise _too_large(size, most, max_size_bytes)
        held.add(len(piece))
        pieces.append(piece)
        left = getattr(unpacker, "unconsumed_tail", b"")  # zstd keeps its own
        is_full = len(piece) == _PIECE_BYTES
        if unpacker.eof:
            left, is_full, unpacker = unpacker.unused_data, False, None
            if (left or begin < len(body)) and (coding == "deflate" or num_members == MAX_MEMBERS):
                raise InvalidPayload(f"The body has bytes after the end of its {coding} data")
    if unpacker is not None:
        raise InvalidPayload(f"The body's {coding} data is incomplete: its end is missing")
    return b"".join(pieces)


def _unpacker(coding: str, packed: bytes) -> tuple[Any, type[Exception]]:
    """An object that unpacks one member or frame, and what it raises."""
    if coding == "zstd":
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
        options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
        return zstd.ZstdDecompressor(options=options), zstd.ZstdError
    # Some clients send deflate without zlib's head.
    has_head = len(packed) > 1 and packed[0] & 15 == 8 and int.from_bytes(packed[:2]) % 31 == 0
    bits = _GZIP if coding == "gzip" else _ZLIB if has_head else _RAW
    return zlib.decompressobj(bits), zlib.error


def _too_large(size: int, most: int, max_size_bytes: int) -> TooLarge:
    if most == max_size_bytes:
        return TooLarge(f"The request body has at least {size} bytes unpacked, at most {most} are allowed")
    return TooLarge(
        f"The request body has at least {size} bytes unpacked, more than {MAX_RATIO} times what it has packed"
    )


MULTIPART = "multipart/form-data"
MAX_FORM_FIELDS = 2_000  # LMI's `inputs` comes as often as there are prompts


class Part(NamedTuple):
    """One part. `file_name` None = a plain field."""

    name: str
    content: bytes
    file_name: str | None = None


def read_parts(http: HttpCall) -> list[Part]:
    """The named parts of a multipart body, in order. Raises: InvalidPayload if the body is malformed."""
    _, options = parse_options_header(http.headers["content-type"])
    check_count(http.body.count(b"--" + options.get(b"boundary", b"")))
    parts: list[Part] = []
    is_ended = False

    def take(part: Field | File) -> None:
        name = (part.field_name or b"").decode("utf-8", "replace")
        if isinstance(part, Field):
            parts.append(Part(name, part.value or b""))
        else:
            part.file_object.seek(0)
            file_name = (part.file_name or b"").decode("utf-8", "replace")
            parts.append(Part(name, part.file_object.read(), file_name))

    def end() -> None:
        nonlocal is_ended
        is_ended = True

    try:
        parser = FormParser(
            MULTIPART,
            take,
            take,
            end,
            options.get(b"boundary"),
            config={"MAX_MEMORY_FILE_SIZE": len(http.body) + 1},  # the body is in memory already: no temporary files
        )
        parser.write(http.body)
    except FormParserError as error:
        raise InvalidPayload(f"The multipart body is malformed: {error}") from error
    if not is_ended:
        raise InvalidPayload(
            "The multipart body is malformed: it lacks the last boundary, which its content type names"
        )
    return parts


def check_count(num_fields: int) -> None:
    if num_fields > MAX_FORM_FIELDS:
        raise InvalidPayload(f"A form must have at most {MAX_FORM_FIELDS} fields, got {num_fields} or more")
