"""Turns the bytes of an image file into a `Picture`.

Does: png, jpeg, webp, gif (its first frame) and bmp; colours to RGB, transparency over white, EXIF orientation.
Does not: fetch, resize, or apply colour profiles. Pure; called by the loader on worker threads, several at a time: Pillow's
decoders let other threads run.

Transparent pixels are laid over white, as vLLM and the processors of Idefics do: a logo on a transparent ground is meant to
stand on paper. Dropping alpha alone (Pillow's `convert("RGB")`) would show the colours that lie hidden under it.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Mapping
from hashlib import blake2b

import numpy as np
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from dragoman.pictures.limits import FORMATS, MAX_SIDE, PictureFault, PictureLimits, PixelBudget
from dragoman.types import Picture

logger = logging.getLogger("dragoman.pictures")

DIGEST_BYTES = 16
ORIENTATION = 0x0112  # Source: EXIF 2.32, 4.6.4
MAX_SCANNED_PIXELS = (
    1_000_000_000  # of a progressive JPEG, in all its scans: each of them may cost a pass over the picture
)

_WHITE = (255, 255, 255)
_START_OF_SCAN = b"\xff\xda"
_HEAD_BYTES = 16

# The classes themselves and not `Image.open`, which asks every plugin of the process and warns of large pictures on stderr
# before anybody can look at the size.
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


def decode_picture(data: bytes, limits: PictureLimits, path: str, budget: PixelBudget | None = None) -> Picture:
    """The picture in these bytes, upright. `path` names the parameter in messages; `budget`: the request's, if it has one.

    Raises: PictureFault if they are no image of the five formats, are damaged or cut off, or if it is too large; size is
    looked at before anything is decoded.
    """
    _silence_pillow()
    image = _opened(data, path)
    _check_size(image, data, limits, path)
    if budget is not None:
        budget.take(image.width * image.height, path)
    try:
        image.load()
        rgb = _upright(_over_white(image), image)
        pixels = rgb.tobytes()
    except Exception as error:  # decoders of damaged files fail in every way
        raise _damaged(path, error) from error
    return Picture(rgb.width, rgb.height, pixels, _digest(rgb.width, rgb.height, pixels))


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


def _opened(data: bytes, path: str) -> ImageFile:
    """The image with its header read and nothing decoded. Raises: PictureFault."""
    kind = _kind(data[:_HEAD_BYTES])
    if kind is None:
        raise PictureFault(path, "content", f"must be {FORMATS}, got {len(data)} bytes of something else")
    try:
        return _READERS[kind](io.BytesIO(data))
    except Exception as error:  # as above
        raise _damaged(path, error) from error


def _damaged(path: str, error: Exception) -> PictureFault:
    logger.debug("%s cannot be decoded: %s: %s", path, type(error).__name__, error)
    return PictureFault(path, "content", f"must be {FORMATS} that is complete and undamaged, got one that is not")


def _check_size(image: ImageFile, data: bytes, limits: PictureLimits, path: str) -> None:
    """Raises: PictureFault for a picture that would take too much memory or time."""
    width, height = image.size
    if width < 1 or height < 1 or max(width, height) > MAX_SIDE or width * height > limits.max_pixels:
        allowed = f"at most {limits.max_pixels} pixels and {MAX_SIDE} on a side"
        raise PictureFault(path, "size", f"must be an image of {allowed}, got {width} x {height}")
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


def _upright(rgb: Image.Image, image: ImageFile) -> Image.Image:
    """Turned as the file's EXIF data say; where those cannot be read, the pixels stand as they are stored."""
    try:
        orientation = image.getexif().get(ORIENTATION, 1)
        turn = _UPRIGHT.get(orientation)
    except Exception as error:
        logger.debug("EXIF data that cannot be read: %s", error)
        return rgb
    return rgb if turn is None else rgb.transpose(turn)


def _digest(width: int, height: int, rgb: bytes) -> str:
    made = blake2b(f"{width}x{height}:".encode(), digest_size=DIGEST_BYTES)
    made.update(rgb)
    return made.hexdigest()
