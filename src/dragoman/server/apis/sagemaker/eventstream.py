"""Writes messages of `application/vnd.amazon.eventstream`, the binary framing that AWS clients read streams in.

Source: the Smithy specification "Amazon Event Stream": [total length u32][headers length u32][CRC-32 of these 8 bytes]
[headers][payload][CRC-32 of everything before], all numbers big-endian; a header is [name length u8][name][type u8 = 7]
[value length u16][value], 7 being the type of UTF-8 strings.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

EVENTSTREAM_MEDIA_TYPE = "application/vnd.amazon.eventstream"

MAX_PAYLOAD_BYTES = 1024 * 1024  # clients refuse messages of more than 16 MiB; longer payloads go into several

_STRING = 7
_PRELUDE = struct.Struct(">II")
_CHECKSUM = struct.Struct(">I")
_OVERHEAD_BYTES = _PRELUDE.size + 2 * _CHECKSUM.size


def message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Raises: struct.error for a header name over 255 or a value over 65535 bytes."""
    packed = b"".join(_header(name, value) for name, value in headers.items())
    prelude = _PRELUDE.pack(_OVERHEAD_BYTES + len(packed) + len(payload), len(packed))
    body = prelude + _CHECKSUM.pack(zlib.crc32(prelude)) + packed + payload
    return body + _CHECKSUM.pack(zlib.crc32(body))


def payload_parts(payload: bytes) -> bytes:
    headers = {":event-type": "PayloadPart", ":content-type": "application/octet-stream", ":message-type": "event"}
    starts = range(0, len(payload), MAX_PAYLOAD_BYTES)
    return b"".join(message(headers, payload[start : start + MAX_PAYLOAD_BYTES]) for start in starts)


def exception(exception_type: str, payload: bytes) -> bytes:
    """A modelled exception, which ends a stream; `payload` is its JSON body."""
    headers = {":exception-type": exception_type, ":content-type": "application/json", ":message-type": "exception"}
    return message(headers, payload)


def _header(name: str, value: str) -> bytes:
    raw_name, raw_value = name.encode(), value.encode()
    return struct.pack(f">B{len(raw_name)}sBH", len(raw_name), raw_name, _STRING, len(raw_value)) + raw_value
