"""Image files, and what is to come out of them."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from dragoman.types import Picture

Pixels = npt.NDArray[np.uint8]


def encoded(image: Image.Image, kind: str, **facts: Any) -> bytes:
    """The image as a file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **facts)
    return buffer.getvalue()


def colours(width: int = 5, height: int = 4, channels: int = 3) -> Pixels:
    """Pixels that all differ, and differ from their neighbours by much."""
    count = width * height * channels
    return (np.arange(count) * 37 % 251).astype(np.uint8).reshape(height, width, channels)


def drawn(width: int = 5, height: int = 4) -> Image.Image:
    """`colours` as an image."""
    return Image.fromarray(colours(width, height))


def png(width: int = 5, height: int = 4) -> bytes:
    """`colours` as a file."""
    return encoded(drawn(width, height), "png")


def data_url(data: bytes, media_type: str = "image/png") -> str:
    """The bytes as clients send them."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def pixels_of(picture: Picture) -> Pixels:
    """[height, width, 3]."""
    return np.frombuffer(picture.rgb, np.uint8).reshape(picture.height, picture.width, 3)
