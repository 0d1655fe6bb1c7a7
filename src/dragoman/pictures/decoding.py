"""Turns the bytes of an image file into a `Picture`, and estimates the memory for that. Called on worker threads.

Transparent pixels are laid over white, as in vLLM and the processors of Idefics: logos are made for paper. Dropping
alpha (Pillow's `convert("RGB")`) would show the colours hidden under it.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from dragoman.pictures.limits import FORMATS, MAX_SIDE, RGB_BYTES, PictureFault, PictureLimits
from dragoman.types import Picture

logger = logging.getLogger("dragoman.pictures")

DIGEST_BYTES = 16
ORIENTATION = 0x0112  # Source: EXIF 2.32, 4.6.4
MAX_SCANNED_PIXELS = 1_000_000_000  # of all scans of a progressive JPEG: each may cost a pass over the picture
MAX_RUNS_BYTES = 1 << 20  # of a run-length bmp: Pillow decodes it in Python, while other threads wait half a second
_DECODING_BYTES = 12  # of a pixel while it is decoded: four of Pillow, and the converted ones
_BUFFERED_BYTES = 20  # the same if the decoder buffers the whole picture: webp, progressive JPEG
_STRIP_PIXELS = 1 << 20  # converted at a time
_HALVED = 4  # times the allowed pixels: larger JPEGs are not decoded at half their sides

_WHITE = (255, 255, 255)
_START_OF_SCAN = b"\xff\xda"
_HEAD_BYTES = 16

# Not `Image.open`: it tries every plugin, and warns about large pictures on stderr before the size can be checked.
_READERS: Mapping[str, Callable[[io.BytesIO], ImageFile]] = {
    "png": PngImageFile,
    "jpeg": JpegImageFile,
    "gif": GifImageFile,
    "bmp": BmpImageFile,
    "webp": WebPImageFile,
}

# The turn that undoes each orientation. Source: EXIF 2.32, 4.6.4.
_UPRIGHT: Mapping[int, Image.Transpose] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class PictureSize(NamedTuple):
    num_pixels: int
    working_bytes: int


def measure_picture(data: bytes, limits: PictureLimits, path: str) -> PictureSize:
    """The memory for decoding, by the head of the file. Raises: PictureFault, but not for damage behind the head."""
    with _opened(data, limits, path) as image:
        num_pixels = image.width * image.height
        return PictureSize(num_pixels, num_pixels * (_BUFFERED_BYTES if _is_buffered(image, data) else _DECODING_BYTES))


def decode_picture(data: bytes, limits: PictureLimits, path: str) -> Picture:
    """The picture in these bytes, upright. Raises: PictureFault; the size is checked before decoding."""
    image = _opened(data, limits, path)
    try:
        image.load()
        turn = _turn(image)
        size, pixels = image.size, _rgb(image)
        if turn is not None:
            size, pixels = _turned(size, pixels, turn)
    except Exception as error:  # decoders raise anything for damaged files
        raise _damaged(path, error) from error
    finally:
        image.close()
    return Picture(*size, b"".join(pixels), _digest(*size, pixels))


def _silence_pillow() -> None:
    """Pillow warns about odd metadata of clients' files. Called each time, as any thread's `catch_warnings` may undo it."""
    warnings.filterwarnings("ignore", module=r"PIL\.")


def _kind(head: bytes) -> str | None:
    """The format by the first bytes: names from clients and servers are often wrong."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if head.startswith(b"BM"):
        return "bmp"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    return None


def _opened(data: bytes, limits: PictureLimits, path: str) -> ImageFile:
    """The image with its header read and nothing decoded, if it is not too large. Raises: PictureFault."""
    _silence_pillow()
    kind = _kind(data[:_HEAD_BYTES])
    if kind is None:
        raise PictureFault(path, "content", f"must be {FORMATS}, got {len(data)} bytes of another format")
    try:
        image = _READERS[kind](io.BytesIO(data))
    except Exception as error:  # as above
        raise _damaged(path, error) from error
    _halve(image, data, limits)
    _check_size(image, data, limits, path)
    return image


def _is_buffered(image: ImageFile, data: bytes) -> bool:
    """True if the decoder keeps the whole picture besides Pillow's copy: a webp, or a JPEG in several scans."""
    if not isinstance(image, JpegImageFile):
        return image.format == "WEBP"
    end = image.fp.tell() if image.fp is not None else 0  # of the first scan's head, with its components
    whole_scan = _START_OF_SCAN + bytes([0, 6 + 2 * image.layers, image.layers])
    return "progressive" in image.info or not data.startswith(whole_scan, max(end - 8 - 2 * image.layers, 0))


def _halve(image: ImageFile, data: bytes, limits: PictureLimits) -> None:
    num_pixels = image.width * image.height
    is_large = limits.max_pixels < num_pixels <= _HALVED * limits.max_pixels and min(image.size) > 1
    if is_large and image.format == "JPEG" and not _is_buffered(image, data):
        image.draft(None, (image.width // 2, image.height // 2))


def _damaged(path: str, error: Exception) -> PictureFault:
    logger.debug("%s cannot be decoded: %s: %s", path, type(error).__name__, error)
    return PictureFault(path, "content", f"must be {FORMATS} that is complete and undamaged, got one that is not")


def _check_size(image: ImageFile, data: bytes, limits: PictureLimits, path: str) -> None:
    width, height = image.size
    if width < 1 or height < 1 or max(width, height) > MAX_SIDE or width * height > limits.max_pixels:
        allowed = f"at most {limits.max_pixels} pixels and {MAX_SIDE} on a side"
        raise PictureFault(path, "size", f"must be an image of {allowed}, got {width} x {height}")
    if image.tile and image.tile[0].codec_name == "bmp_rle" and len(data) > MAX_RUNS_BYTES:
        raise PictureFault(
            path, "size", "must be an image without run-length encoding beyond 1 MiB, or a png, got a bmp"
        )
    if image.format == "JPEG" and data.count(_START_OF_SCAN) * width * height > MAX_SCANNED_PIXELS:
        message = f"must have fewer progressive scans for an image of {width} x {height}, got more"
        raise PictureFault(path, "size", message)


def _over_white(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        return _from_16_bits(image)
    if not image.has_transparency_data:
        return image.convert("RGB")
    seen = image.convert("RGBA")
    ground = Image.new("RGB", seen.size, _WHITE)
    ground.paste(seen, mask=seen.getchannel("A"))
    return ground


def _from_16_bits(image: Image.Image) -> Image.Image:
    """16-bit grey keeps the high byte, as Pillow does for 16-bit colours; its own conversion would clip at 255."""
    values = np.asarray(image)
    grey = (values >> 8).astype(np.uint8)
    unseen = image.info.get("transparency")
    if isinstance(unseen, int):
        grey[values == unseen] = 255
    return Image.fromarray(grey).convert("RGB")


def _rgb(image: ImageFile) -> list[bytes]:
    """The pixels in RGB, strip by strip, so that no whole picture is in memory twice. Closes the image."""
    width, height = image.size
    num_rows = max(_STRIP_PIXELS // width, 1)
    strips = [
        _over_white(image.crop((0, top, width, min(top + num_rows, height)))).tobytes()
        for top in range(0, height, num_rows)
    ]
    image.close()
    return strips


def _turn(image: ImageFile) -> Image.Transpose | None:
    """The turn that makes it upright, by the file's EXIF data; None if they are missing or unreadable."""
    try:
        return _UPRIGHT.get(image.getexif().get(ORIENTATION, 1))
    except Exception as error:
        logger.debug("EXIF data that cannot be read: %s", error)
        return None


def _turned(size: tuple[int, int], strips: list[bytes], turn: Image.Transpose) -> tuple[tuple[int, int], list[bytes]]:
    whole = Image.new("RGB", size)
    top = 0
    while strips:
        strip = strips.pop(0)
        num_rows = len(strip) // (RGB_BYTES * size[0])
        whole.paste(Image.frombytes("RGB", (size[0], num_rows), strip), (0, top))
        top += num_rows
    whole = whole.transpose(turn)
    return whole.size, [whole.tobytes()]


def _digest(width: int, height: int, strips: list[bytes]) -> str:
    made = blake2b(f"{width}x{height}:".encode(), digest_size=DIGEST_BYTES)
    for strip in strips:
        made.update(strip)
    return made.hexdigest()
