"""Resizes as Pillow does, crops, normalises; reads preprocessor_config.json for that."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from PIL import Image

from dragoman.models.config import Config
from dragoman.models.sources.base import Array
from dragoman.types import Picture

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALVES = (0.5, 0.5, 0.5)

_MOST_PIXELS = 1 << 27
"""400 MB. Only a strip of a few pixels becomes as large."""

# Keys of fast processors. Pictures are in colour already, and channels come first in any case.
_HARMLESS = """
    _processor_class _valid_processor_keys auto_map chat_template device disable_grouping do_convert_rgb image_seq_length
    input_data_format num_additional_image_tokens processor_class return_tensors
"""


@dataclass(frozen=True, slots=True)
class Size:
    """The shorter side is resized to `shortest`, or if that is 0, the picture to `height` and `width`."""

    shortest: int = 0
    height: int = 0
    width: int = 0

    def of(self, width: int, height: int) -> tuple[int, int]:
        if not self.shortest:
            return self.width, self.height
        longest = int(self.shortest * max(width, height) / min(width, height))
        return (self.shortest, longest) if width <= height else (longest, self.shortest)


@dataclass(frozen=True, slots=True)
class PixelSteps:
    """The steps that prepare a picture, in this order; None = left out.

    `crop`: height and width cut out of the middle, black beyond the picture. `values`: the numbers for each channel's
    256 values, f32 [3, 256].
    """

    size: Size | None
    resample: Image.Resampling
    crop: tuple[int, int] | None
    values: Array

    @property
    def shape(self) -> tuple[int, int] | None:
        if self.crop is not None:
            return self.crop
        return (self.size.height, self.size.width) if self.size is not None and not self.size.shortest else None

    def check(self, width: int, height: int) -> None:
        """Raises: ValueError, one line, if a picture of that size would take too much memory."""
        if self.size is not None:
            _check_memory((width, height), self.size.of(width, height))

    def apply(self, image: Image.Image) -> Array:
        """Shape: f32 [3, height, width]."""
        if self.size is not None:
            image = image.resize(self.size.of(*image.size), self.resample)
        pixels = np.asarray(image)
        return normalized(pixels if self.crop is None else center_cropped(pixels, *self.crop), self.values)


def as_image(picture: Picture) -> Image.Image:
    return Image.frombytes("RGB", (picture.width, picture.height), picture.rgb)


def center_cropped(pixels: Array, height: int, width: int) -> Array:
    """Black beyond the picture. Shapes: u8 [h, w, 3] -> [height, width, 3]."""
    for axis, size in enumerate((height, width)):
        missing = size - pixels.shape[axis]
        if missing > 0:
            around = [(0, 0)] * 3
            around[axis] = (ceil(missing / 2), missing // 2)
            pixels = np.pad(pixels, around)
        else:
            begin = -missing // 2
            pixels = pixels[begin : begin + size] if axis == 0 else pixels[:, begin : begin + size]
    return pixels


def check_square(width: int, height: int) -> None:
    """Raises: ValueError, one line, if the square around the picture would take too much memory."""
    _check_memory((width, height), (max(width, height), max(width, height)))


def squared(image: Image.Image, color: tuple[int, int, int]) -> Image.Image:
    side = max(image.size)
    square = Image.new("RGB", (side, side), color)
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


def normalized(pixels: Array, values: Array) -> Array:
    """Each channel's values by its table. Shapes: pixels u8 [h, w, 3], values f32 [3, 256] -> f32 [3, h, w]."""
    return np.stack([np.take(values[channel], pixels[..., channel]) for channel in range(3)])


def flat_patches(image: Image.Image, values: Array, size: int) -> Array:
    """f32 [patches, size * size * 3], row by row, colours last."""
    rows, columns = image.height // size, image.width // size
    squares = normalized(np.asarray(image), values).reshape(3, rows, size, columns, size)
    return np.ascontiguousarray(squares.transpose(1, 3, 2, 4, 0)).reshape(rows * columns, -1)


# --- preprocessor_config.json -----------------------------------------------------------------------------------------


def read_kind(described: Config, kinds: tuple[str, ...]) -> str:
    key = "image_processor_type" if "image_processor_type" in described else "feature_extractor_type"
    generations = {f"{kind}{end}": kind for kind in kinds for end in ("ImageProcessor", "ImageProcessorFast")}
    generations |= {f"{kind}FeatureExtractor": kind for kind in kinds}
    described.skip("feature_extractor_type")  # where both are there
    return generations[described.choice(key, generations, f"{kinds[0]}ImageProcessor")]


def read_values(described: Config, mean: tuple[float, ...], std: tuple[float, ...]) -> Array:
    """f32 [3, 256]. `mean`, `std`: if the file has none."""
    values: Array = np.tile(np.arange(256, dtype=np.float64), (3, 1))
    factor = described.number("rescale_factor", 1 / 255)
    if described.flag("do_rescale", default=True):
        values = values * factor
    values = values.astype(np.float32)
    means, deviations = read_channels(described, "image_mean", mean), read_channels(described, "image_std", std)
    if described.flag("do_normalize", default=True):
        if not np.all(deviations):
            raise described.error("image_std", "numbers other than 0")
        values = (values - means[:, None]) / deviations[:, None]
    values.setflags(write=False)
    return values


def read_channels(described: Config, key: str, default: tuple[float, ...]) -> Array:
    if key not in described:
        return np.array(default, dtype=np.float32)
    if isinstance(described.value(key), list):
        return np.array(described.numbers(key, 3), dtype=np.float32)
    return np.full(3, described.number(key), dtype=np.float32)


def read_resample(described: Config, default: Image.Resampling = Image.Resampling.BICUBIC) -> Image.Resampling:
    number = described.count("resample", int(default), least=0)
    if number not in set(Image.Resampling):
        raise described.error(
            "resample", ", ".join(f"{filter:d} ({filter.name.lower()})" for filter in Image.Resampling)
        )
    return Image.Resampling(number)


def read_size(described: Config, key: str, default: int, *, is_square: bool) -> Size:
    """A size as a number, a pair of height and width, or an object; `is_square`: a lone number is a square's side."""
    value: Any = described.value(key, default)
    wanted = 'a number, {"shortest_edge"} or {"height", "width"}, each from 1 to 16384'
    if isinstance(value, list) and len(value) == 2:
        value = dict(zip(("height", "width"), value, strict=True))
    elif not isinstance(value, dict):
        value = {"height": value, "width": value} if is_square else {"shortest_edge": value}
    if not all(_is_side(side) for side in value.values()):
        raise described.error(key, wanted)
    if set(value) == {"shortest_edge"}:
        return Size(shortest=value["shortest_edge"])
    if set(value) != {"height", "width"}:
        raise described.error(key, wanted)
    return Size(height=value["height"], width=value["width"])


def read_steps(described: Config, default: int, *, crops: bool, numbers: tuple[tuple[float, ...], ...]) -> PixelSteps:
    """`default`: the size if none is given; `numbers`: mean and deviation; `crops`: the middle is cut out, as by CLIP."""
    resizes = described.flag("do_resize", default=True)
    size = read_size(described, "size", default, is_square=described.flag("default_to_square", not crops) or not crops)
    crop = None
    if crops:
        middle = read_size(described, "crop_size", default, is_square=True)
        if middle.shortest:
            raise described.error("crop_size", 'a number or {"height", "width"}')
        crop = (middle.height, middle.width) if described.flag("do_center_crop", default=True) else None
    values = read_values(described, *numbers)
    return PixelSteps(size if resizes else None, read_resample(described), crop, values)


def refuse_unread(described: Config) -> None:
    described.expect(data_format="channels_first")
    described.skip(*_HARMLESS.split())
    described.refuse_unread()


def read_text(described: Config, key: str, default: str) -> str:
    value = described.value(key, default)
    if not isinstance(value, str) or not value:
        raise described.error(key, "a text")
    return value


def _check_memory(size: tuple[int, int], becomes: tuple[int, int]) -> None:
    if becomes[0] * becomes[1] > _MOST_PIXELS:
        sizes = f"a picture of {size[0]} x {size[1]} pixels becomes one of {becomes[0]} x {becomes[1]}"
        raise ValueError(f"{sizes}, allowed: at most {_MOST_PIXELS} pixels")


def _is_side(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 16384
