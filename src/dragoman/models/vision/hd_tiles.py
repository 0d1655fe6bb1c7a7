"""Phi-3.5-vision's pictures. Pure; any thread. Sources: arXiv:2404.06512 ("HD transform"); arXiv:2404.14219, section 7.1."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from PIL import Image

from dragoman.models.config import Config
from dragoman.models.sources.base import Array
from dragoman.models.vision import pixels
from dragoman.models.vision.base import PictureLayout
from dragoman.models.vision.tiles import PIXELS
from dragoman.types import Detail, Picture

ROWS = "rows"
"""The input of a tower's graph that says how embeddings lie, i64 [N]: rows of a table, see `HdLayout.rows`."""
PLACEHOLDER = "<|image|>"
TILE = 336  # pixels of a tile's side
SIDE = 12  # embeddings of a tile's side

_MARKER = "<|image_{}|>"
_MOST_TILES = 100
_WHITE = (255, 255, 255)


@dataclass(frozen=True, slots=True)
class HdLayout:
    most: int

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height, not yet of whole tiles. Raises: ValueError, one line, if a side would become empty."""
        longer, shorter = max(width, height), min(width, height)
        ratio, count = longer / shorter, 1
        while (count + 1) * ceil((count + 1) / ratio) <= self.most:
            count += 1
        long, short = count * TILE, int(count * TILE / ratio)
        if not short:
            sizes = f"a picture of {width} x {height} pixels"
            raise ValueError(f"{sizes}, allowed: none with a side more than {count * TILE} times the other")
        return (long, short) if width >= height else (short, long)

    def grid(self, width: int, height: int) -> tuple[int, int]:
        wide, high = self.size(width, height)
        return ceil(high / TILE), ceil(wide / TILE)

    def num_embeddings(self, width: int, height: int) -> int:
        down, across = self.grid(width, height)
        return (down * across + 1) * SIDE**2 + 1 + (down + 1) * SIDE

    def rows(self, width: int, height: int) -> Array:
        down, across = self.grid(width, height)
        places: Array = np.arange((1 + down * across) * SIDE**2, dtype=np.int64)
        copy, tiles = places[: SIDE**2].reshape(SIDE, SIDE), places[SIDE**2 :].reshape(down, across, SIDE, SIDE)
        joined = tiles.transpose(0, 2, 1, 3).reshape(down * SIDE, across * SIDE)
        behind_row, behind_tiles = len(places), len(places) + 1
        lined, lined_copy = (np.pad(part, ((0, 0), (0, 1)), constant_values=behind_row) for part in (joined, copy))
        return np.concatenate([lined.reshape(-1), [behind_tiles], lined_copy.reshape(-1)])


class HdPictures:
    def __init__(self, described: Config) -> None:
        pixels.read_kind(described, ("Phi3V",))
        most = described.count("num_crops", 1)
        if most > _MOST_TILES:
            raise described.error("num_crops", f"at most {_MOST_TILES}")
        described.expect(num_img_tokens=SIDE**2)
        self.marker = _MARKER
        self._tiles = HdLayout(most)
        self._values = pixels.read_values(described, pixels.CLIP_MEAN, pixels.CLIP_STD)
        pixels.refuse_unread(described)

    def layout(self, width: int, height: int, detail: Detail) -> PictureLayout:
        count = self._layout_of(detail).num_embeddings(width, height)
        return PictureLayout(PLACEHOLDER * count, count)

    def inputs(self, picture: Picture, detail: Detail) -> dict[str, Array]:
        layout = self._layout_of(detail)
        size, (down, across) = layout.size(picture.width, picture.height), layout.grid(picture.width, picture.height)
        padded = _centered(_resized(pixels.as_image(picture), size), across * TILE, down * TILE)
        numbers = pixels.normalized(np.asarray(padded), self._values)
        corners = [(row * TILE, column * TILE) for row in range(down) for column in range(across)]
        parts = [numbers[:, top : top + TILE, left : left + TILE] for top, left in corners]
        copy = _shrunk(_shrunk(numbers, 2, across), 1, down)
        return {PIXELS: np.stack([copy, *parts]), ROWS: layout.rows(picture.width, picture.height)}

    def _layout_of(self, detail: Detail) -> HdLayout:
        return replace(self._tiles, most=1) if detail == "low" else self._tiles


def _resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The picture in that size, turned while it is resized: Pillow's first axis counts."""
    if image.width >= image.height:
        return image.resize(size, Image.Resampling.BILINEAR)
    lying = image.transpose(Image.Transpose.TRANSPOSE).resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return lying.transpose(Image.Transpose.TRANSPOSE)


def _centered(image: Image.Image, width: int, height: int) -> Image.Image:
    whole = Image.new("RGB", (width, height), _WHITE)
    whole.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
    return whole


def _shrunk(numbers: Array, axis: int, times: int) -> Array:
    """An axis `times` times shorter, by bicubic interpolation (A = -0.75) in the middle of `times` places."""
    middle = np.arange(numbers.shape[axis] // times) * times + times // 2
    if times % 2:
        return np.take(numbers, middle, axis)
    last = numbers.shape[axis] - 1
    weights = {-2: -0.09375, -1: 0.59375, 0: 0.59375, 1: -0.09375}
    parts = [np.float32(w) * np.take(numbers, np.clip(middle + k, 0, last), axis) for k, w in weights.items()]
    return np.asarray((parts[0] + parts[1]) + (parts[2] + parts[3]))
