"""Limits on pictures, and the error for a picture that breaks one.

Does: hold the operator's limits, and a request's use of them. Does not: look at pictures; `data_url`, `fetching` and
`decoding` do. Used on any thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from dragoman.errors import InvalidParameter

Problem = Literal["address", "encoding", "content", "size", "fetch"]
"""What is wrong with a picture: where it is said to be, its base64, its bytes, how large it is, or getting it at all."""

MEBIBYTE = 1024 * 1024
RGB_BYTES = 3  # of a pixel of a picture
MAX_SIDE = 65_535  # pixels. Source: the widest that JPEG and GIF can say
PICTURES_PER_REQUEST = (
    4  # pictures of `max_pixels` and `max_bytes` that one request may hold, in any number of smaller ones
)
MAX_SHOWN = 60  # characters of a client's text that a message repeats

DATA_URL = "data:image/...;base64,..."
FORMATS = "a png, jpeg, webp, gif or bmp image"


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """The operator's bounds. `allowed_hosts` () = nothing is fetched; its words are those of `places.HostRule`.

    `max_bytes` and `max_pixels` are of one picture; `timeout_s` is for one fetch from beginning to end, waiting included.
    """

    max_bytes: int = 20 * MEBIBYTE
    max_pixels: int = 50_000_000  # three bytes each once decoded
    timeout_s: float = 5.0  # 5: VLLM_IMAGE_FETCH_TIMEOUT of vLLM
    max_redirects: int = 3
    allowed_hosts: tuple[str, ...] = ()

    @property
    def max_bytes_per_request(self) -> int:
        """The bytes that the files of all pictures of one request may have together."""
        return PICTURES_PER_REQUEST * self.max_bytes

    @property
    def max_pixels_per_request(self) -> int:
        """The pixels of all pictures of one request: small files must not decode to all of the memory."""
        return PICTURES_PER_REQUEST * self.max_pixels


class PictureFault(InvalidParameter):
    """A picture of a request that cannot be obtained. `problem` is for APIs that have a text of their own for it."""

    def __init__(self, path: str, problem: Problem, message: str) -> None:
        super().__init__(f"{path} {message}", param=path)
        self.problem = problem


class RequestBudget:
    """Counts the pictures of one request against the limits. Used on one thread at a time."""

    def __init__(self, limits: PictureLimits) -> None:
        self._limits = limits
        self.num_bytes = 0
        self.num_pixels = 0

    def take(self, num_bytes: int, num_pixels: int, path: str) -> None:
        """Count a picture before it is decoded. Raises: PictureFault if it is too much."""
        self.num_bytes += num_bytes
        self.num_pixels += num_pixels
        most = self._limits.max_bytes_per_request
        if self.num_bytes > most:
            raise PictureFault(path, "size", f"must leave the images of the request at {_shown(most)} in all, got more")
        most = self._limits.max_pixels_per_request
        if self.num_pixels > most:
            raise PictureFault(path, "size", f"must leave the images of the request at {most} pixels in all, got more")


def excerpt(text: str) -> str:
    """The beginning of a client's text as a message repeats it: one line, quoted."""
    return json.dumps(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...", ensure_ascii=True)


def too_large(path: str, limits: PictureLimits) -> PictureFault:
    """The error for more bytes than one picture may have."""
    return PictureFault(path, "size", f"must be an image of at most {_shown(limits.max_bytes)}, got more")


def _shown(num_bytes: int) -> str:
    return f"{num_bytes // MEBIBYTE} MiB" if num_bytes >= MEBIBYTE else f"{num_bytes} bytes"
