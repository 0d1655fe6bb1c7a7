"""Prepares pictures for Qwen's towers. Pure; used on any thread. Source: Qwen2-VL (arXiv:2409.12191), section 2.1."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dragoman.models.config import Config
from dragoman.models.sources.base import Array
from dragoman.models.vision import pixels
from dragoman.models.vision.base import PictureLayout
from dragoman.types import Detail, Picture

PATCHES, POSITIONS = "pixel_values", "positions"

PLACEHOLDER = "<|image_pad|>"  # the text of image_token_id in every released checkpoint

_KINDS = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL")
_MAX_RATIO = 200  # of the longer side to the shorter, from the reference processor
_LOW_PIXELS = 512 * 512  # what OpenAI's API reference says of detail "low"


@dataclass(frozen=True, slots=True)
class Cut:
    """`patch`: pixels of its side. `frames`: repeats of a patch. `merge`: patches each way of one embedding."""

    patch: int
    frames: int
    merge: int

    @property
    def width(self) -> int:
        return 3 * self.frames * self.patch**2

    @property
    def side(self) -> int:
        return self.patch * self.merge

    def in_squares(self, grid: Array) -> Array:
        """The values of a grid in the order of patches. Shapes: [rows, columns, ...] -> [patches, ...]."""
        rows, columns, *rest = grid.shape
        squares = grid.reshape(rows // self.merge, self.merge, columns // self.merge, self.merge, *rest)
        return np.ascontiguousarray(squares.swapaxes(1, 2)).reshape(-1, *rest)

    def positions(self, rows: int, columns: int) -> Array:
        """The row and the column of each patch. Shape: i64 [2, patches]."""
        grid = np.moveaxis(np.indices((rows, columns)), 0, -1)
        return np.ascontiguousarray(self.in_squares(grid).T.astype(np.int64))


Tables = Callable[[int, int], dict[str, Array]]


class QwenPictures:
    """See `PictureProcessor`. Detail "low": at most 512 * 512 pixels, but never fewer than the fewest.

    Shapes: pixel_values f32 [patches, 3 * frames * patch * patch], and what `tables` gives.
    """

    marker = PLACEHOLDER

    def __init__(self, described: Config, cut: Cut, tables: Tables) -> None:
        pixels.read_kind(described, _KINDS)
        described.expect(
            patch_size=cut.patch,
            temporal_patch_size=cut.frames,
            merge_size=cut.merge,
            do_resize=True,
            do_center_crop=False,
            do_pad=False,
        )
        described.skip("default_to_square")  # for sizes that are one number
        self._cut, self._tables = cut, tables
        self._limits = _limits(described)
        self._resample = pixels.read_resample(described)
        self._values = pixels.read_values(described, pixels.CLIP_MEAN, pixels.CLIP_STD)
        pixels.refuse_unread(described)

    def layout(self, width: int, height: int, detail: Detail) -> PictureLayout:
        resized = self._size(width, height, detail)
        columns, rows = (length // self._cut.side for length in resized)
        return PictureLayout(PLACEHOLDER * (rows * columns), rows * columns, (rows, columns))

    def inputs(self, picture: Picture, detail: Detail) -> dict[str, Array]:
        size = self._size(picture.width, picture.height, detail)
        resized = np.asarray(pixels.as_image(picture).resize(size, self._resample))
        patch = self._cut.patch
        columns, rows = (length // patch for length in size)
        patches = self._cut.in_squares(resized.reshape(rows, patch, columns, patch, 3).swapaxes(1, 2))
        shape = (len(patches), 3, self._cut.frames, patch, patch)
        result = np.empty(shape, dtype=np.float32)
        for colour in range(3):
            result[:, colour] = self._values[colour][patches[..., colour]][:, None]
        return {PATCHES: result.reshape(len(patches), -1), **self._tables(rows, columns)}

    def _size(self, width: int, height: int, detail: Detail) -> tuple[int, int]:
        fewest, most = self._limits
        if detail == "low":
            most = min(most, max(fewest, _LOW_PIXELS))
        return fitted_size(width, height, self._cut.side, fewest, most)


def fitted_size(width: int, height: int, side: int, fewest: int, most: int) -> tuple[int, int]:
    """The nearest multiples of `side` with `fewest` to `most` pixels, or more for long pictures. Raises: ValueError."""
    if max(width, height) > _MAX_RATIO * min(width, height):
        raise ValueError(
            f"a picture of {width} x {height} pixels is too long for this model, allowed: a longer side of at most "
            f"{_MAX_RATIO} times the shorter one"
        )
    nearest = round(width / side) * side, round(height / side) * side
    if nearest[0] * nearest[1] > most:
        shrink = math.sqrt((height * width) / most)
        return (
            max(side, math.floor(width / shrink / side) * side),
            max(side, math.floor(height / shrink / side) * side),
        )
    if nearest[0] * nearest[1] < fewest:
        grow = math.sqrt(fewest / (height * width))
        return math.ceil(width * grow / side) * side, math.ceil(height * grow / side) * side
    return nearest


def _limits(described: Config) -> tuple[int, int]:
    fewest, most = 56 * 56, 28 * 28 * 1280  # the reference's defaults
    size = described.part("size")
    if size is not None:
        size.rename({"min_pixels": "shortest_edge", "max_pixels": "longest_edge"})
        fewest, most = size.count("shortest_edge"), size.count("longest_edge")
        size.refuse_unread()
    fewest, most = described.count("min_pixels", fewest), described.count("max_pixels", most)
    if most < fewest:
        raise described.error("max_pixels" if "max_pixels" in described else "size", f"at least the fewest, {fewest}")
    return fewest, most
