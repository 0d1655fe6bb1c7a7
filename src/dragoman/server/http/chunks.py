"""Finds the end of a chunked body while it arrives, and bounds what surrounds it. Source: RFC 9112, section 7.1."""

from __future__ import annotations

import re
from http import HTTPStatus

MAX_LINES_BYTES = 65_536  # of one chunk's head, and of all trailers
MAX_HEADS_BYTES = 1_048_576  # of all chunks' heads, which cost more time than the bytes in them
BODY_BYTES_PER_HEADS_BYTE = 8  # as much more may come with large bodies

_TOO_LARGE = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
_END = b"\r\n\r\n"
_HEAD = re.compile(rb"([0-9A-Fa-f]{1,16})(;[^\r\n]*)?")


class Refusal(Exception):
    """The request cannot be read any further. `reason`: the body of the answer."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class ChunkEnds:
    def __init__(self) -> None:
        self._num_left = 0  # bytes of a chunk that has begun, with the end of its line
        self._num_heads_bytes = self._num_body_bytes = self._num_trailer_bytes = 0
        self._has_trailers = False  # the last chunk was here; an empty line ends the body
        self._last_bytes = b""  # of the trailers

    def end_in(self, data: bytearray) -> int:
        """The number of bytes of `data`, which continues the last call's, that belong to this body. Raises: Refusal."""
        place = self._num_left
        while not self._has_trailers and place < len(data):
            end = data.find(b"\r\n", place)
            if (len(data) if end < 0 else end) - place > MAX_LINES_BYTES:
                raise Refusal(_TOO_LARGE, "The head of a chunk is too large.")
            if end < 0:
                self._num_left = 0
                return place
            size = self._size(data, place, end)
            if not size:
                self._has_trailers = True
                return self._end_of_trailers(data, end)
            place = end + 4 + size
        if self._has_trailers:
            return self._end_of_trailers(data, 0)
        self._num_left = place - len(data)
        return len(data)

    def _size(self, data: bytearray, begin: int, end: int) -> int:
        head = _HEAD.fullmatch(data, begin, end)
        if head is None:
            raise Refusal(HTTPStatus.BAD_REQUEST, "The size of a chunk must be a hexadecimal number.")
        size = int(head[1], 16)
        self._num_heads_bytes += end - begin + 4
        self._num_body_bytes += size
        if self._num_heads_bytes > MAX_HEADS_BYTES + self._num_body_bytes // BODY_BYTES_PER_HEADS_BYTE:
            raise Refusal(_TOO_LARGE, "The chunks of the body are too small, or their heads too large.")
        return size

    def _end_of_trailers(self, data: bytearray, begin: int) -> int:
        read = self._last_bytes + data[begin:]
        place = read.find(_END)
        end = len(data) if place < 0 else begin + place + len(_END) - len(self._last_bytes)
        self._num_trailer_bytes += end - begin
        if self._num_trailer_bytes > MAX_LINES_BYTES:
            raise Refusal(_TOO_LARGE, "The trailers of the request are too large.")
        self._last_bytes = bytes(read[-3:])
        return end
