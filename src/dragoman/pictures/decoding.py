"""Turns the bytes of an image file into a `Picture`, and tells before what that takes.

Does: png, jpeg, webp, gif (its first frame) and bmp; colours to RGB, transparency over white, EXIF orientation.
Does not: fetch, resize (but for very large JPEGs), or apply colour profiles. Pure; called by the loader on worker threads,
several at a time: Pillow's decoders let other threads run.

Transparent pixels are laid over white, as vLLM and the processors of Idefics do: a logo on a transparent ground is meant to
stand on paper. Dropping alpha alone (Pillow's `convert("RGB")`) would show the colours that lie hidden under it.
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
MAX_SCANNED_PIXELS = (
    1_000_000_000  # of a progressive JPEG, in all its scans: each of them may cost a pass over the picture
)

MAX_RUNS_BYTES = (
    1 << 20
)  # of a bmp in runs, which Pillow decodes in Python: this takes half a second, in which others wait
_DECODING_BYTES = 12  # of a pixel, at most, while it is decoded: four of Pillow's, and what they become
_BUFFERED_BYTES = 20  # the same where the decoder keeps the whole picture for itself: of a webp, or a progressive JPEG
_STRIP_PIXELS = 1 << 20  # that are converted at a time
_HALVED = 4  # times as many pixels as a picture may have, a JPEG has at most that is decoded at half its sides

_WHITE = (255, 255, 255)
_START_OF_SCAN = b"\xff\xda"
_HEAD_BYTES = 16

# Not `Image.open`: it asks every plugin of the process, and warns of large pictures on stderr before the size can be
# checked.
_READERS: Mapping[str, Callable[[io.BytesIO], ImageFile]] = {
    "png": PngImageFile,
    "jpeg": JpegImageFile,
    "gif": GifImageFile,
    "bmp": BmpImageFile,
    "webp": WebPImageFile,
}

# Source: EXIF 2.32, 4.6.4: what undoes each orientation.
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
    """The pixels of a decoded picture, and the bytes that decoding it takes besides."""

    num_pixels: int
    working_bytes: int


def measure_picture(data: bytes, limits: PictureLimits, path: str) -> PictureSize:
    """The memory that decoding would take, by the head of the file.

    Raises: PictureFault as `decode_picture`, except for damage behind the head.
    """
    with _opened(data, limits, path) as image:
        num_pixels = image.width * image.height
        return PictureSize(num_pixels, num_pixels * (_BUFFERED_BYTES if _is_buffered(image, data) else _DECODING_BYTES))


def decode_picture(data: bytes, limits: PictureLimits, path: str) -> Picture:
    """The picture in these bytes, upright. `path` names the parameter in messages.

    Raises: PictureFault if they are not an image of the five formats, are damaged or cut off, or if the image is too large.
    The size is checked before anything is decoded.
    """
    image = _opened(data, limits, path)
    try:
        image.load()
        turn = _turn(image)
        size, pixels = image.size, _rgb(image)
        if turn is not None:
            size, pixels = _turned(size, pixels, turn)
    except Exception as error:  # decoders of damaged files fail in every way
        raise _damaged(path, error) from error
    finally:
        image.close()
    return Picture(*size, b"".join(pixels), _digest(*size, pixels))


def _silence_pillow() -> None:
    """Pillow tells of odd metadata by Python warnings; nobody reads a server's stderr for those of its clients' files.

    Filters belong to the process and `catch_warnings` in any thread may put old ones back, so this is said each time.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")


def _kind(head: bytes) -> str | None:
    """The format by its first bytes: what a client or a server calls it is often wrong."""
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
    """True if the decoder keeps the whole picture besides Pillow's copy: of a webp, and of a JPEG in several scans."""
    if not isinstance(image, JpegImageFile):
        return image.format == "WEBP"
    end = image.fp.tell() if image.fp is not None else 0  # of the first scan's head, which names its components
    whole_scan = _START_OF_SCAN + bytes([0, 6 + 2 * image.layers, image.layers])
    return "progressive" in image.info or not data.startswith(whole_scan, max(end - 8 - 2 * image.layers, 0))


def _halve(image: ImageFile, data: bytes, limits: PictureLimits) -> None:
    """Have a JPEG of more pixels than are allowed decoded at half its sides, if it is not buffered."""
    num_pixels = image.width * image.height
    is_large = limits.max_pixels < num_pixels <= _HALVED * limits.max_pixels and min(image.size) > 1
    if is_large and image.format == "JPEG" and not _is_buffered(image, data):
        image.draft(None, (image.width // 2, image.height // 2))


def _damaged(path: str, error: Exception) -> PictureFault:
    logger.debug("%s cannot be decoded: %s: %s", path, type(error).__name__, error)
    return PictureFault(path, "content", f"must be {FORMATS} that is complete and undamaged, got one that is not")


def _check_size(image: ImageFile, data: bytes, limits: PictureLimits, path: str) -> None:
    """Raises: PictureFault for a picture that would take too much memory or time."""
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
    """The image in RGB; what is transparent shows white."""
    if image.mode.startswith("I;16"):
        return _from_16_bits(image)
    if not image.has_transparency_data:
        return image.convert("RGB")
    seen = image.convert("RGBA")
    ground = Image.new("RGB", seen.size, _WHITE)
    ground.paste(seen, mask=seen.getchannel("A"))
    return ground


def _from_16_bits(image: Image.Image) -> Image.Image:
    """16-bit grey: the high byte, which is what Pillow keeps of 16-bit colours; its own conversion would clip at 255."""
    values = np.asarray(image)
    grey = (values >> 8).astype(np.uint8)
    unseen = image.info.get("transparency")
    if isinstance(unseen, int):
        grey[values == unseen] = 255
    return Image.fromarray(grey).convert("RGB")


def _rgb(image: ImageFile) -> list[bytes]:
    """The pixels in RGB, strip by strip, so that no whole picture is there twice. Closes the image."""
    width, height = image.size
    num_rows = max(_STRIP_PIXELS // width, 1)
    strips = [
        _over_white(image.crop((0, top, width, min(top + num_rows, height)))).tobytes()
        for top in range(0, height, num_rows)
    ]
    image.close()
    return strips


def _turn(image: ImageFile) -> Image.Transpose | None:
    """The turn that makes it upright, by the file's EXIF data; None where they say nothing, or cannot be read."""
    try:
        return _UPRIGHT.get(image.getexif().get(ORIENTATION, 1))
    except Exception as error:
        logger.debug("EXIF data that cannot be read: %s", error)
        return None


def _turned(size: tuple[int, int], strips: list[bytes], turn: Image.Transpose) -> tuple[tuple[int, int], list[bytes]]:
    """Size and pixels behind a turn. Mutates: `strips`, which are no more needed."""
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
