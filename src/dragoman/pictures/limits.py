"""Limits on pictures, a request's use of them, and the error for a picture that breaks one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from dragoman.errors import InvalidParameter

Problem = Literal["address", "encoding", "content", "size", "fetch"]

MEBIBYTE = 1024 * 1024
RGB_BYTES = 3  # per pixel
MAX_SIDE = 65_535  # pixels, the most in JPEG and GIF
PICTURES_PER_REQUEST = 4  # of `max_pixels` and `max_bytes`, or any number of smaller ones
MAX_SHOWN = 60  # characters of a client's text in a message

DATA_URL = "data:image/...;base64,..."
FORMATS = "a png, jpeg, webp, gif or bmp image"


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """The operator's bounds, of one picture or one whole fetch. `allowed_hosts`: as `places.HostRule`, () = no fetches."""

    max_bytes: int = 20 * MEBIBYTE
    max_pixels: int = 50_000_000  # of three bytes each when decoded
    timeout_s: float = 5.0  # 5: VLLM_IMAGE_FETCH_TIMEOUT of vLLM
    max_redirects: int = 3
    allowed_hosts: tuple[str, ...] = ()

    @property
    def max_bytes_per_request(self) -> int:
        return PICTURES_PER_REQUEST * self.max_bytes

    @property
    def max_pixels_per_request(self) -> int:
        """Small files must not decode to all of the memory."""
        return PICTURES_PER_REQUEST * self.max_pixels


class PictureFault(InvalidParameter):
    """A picture of a request that cannot be obtained. `problem`: for APIs with their own texts."""

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
        self.num_bytes += num_bytes
        self.num_pixels += num_pixels
        most = self._limits.max_bytes_per_request
        if self.num_bytes > most:
            raise PictureFault(path, "size", f"must leave the images of the request at {_shown(most)} in all, got more")
        most = self._limits.max_pixels_per_request
        if self.num_pixels > most:
            raise PictureFault(path, "size", f"must leave the images of the request at {most} pixels in all, got more")


def excerpt(text: str) -> str:
    """The beginning of a client's text for a message: one line, quoted."""
    return json.dumps(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...", ensure_ascii=True)


def too_large(path: str, limits: PictureLimits) -> PictureFault:
    return PictureFault(path, "size", f"must be an image of at most {_shown(limits.max_bytes)}, got more")


def _shown(num_bytes: int) -> str:
    return f"{num_bytes // MEBIBYTE} MiB" if num_bytes >= MEBIBYTE else f"{num_bytes} bytes"
