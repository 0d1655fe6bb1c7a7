"""LLaVA 1.5, each picture at one size; LLaVA-NeXT and OneVision, with pictures in tiles.

Sources: arXiv:2310.03744; LLaVA-NeXT's release of January 2024 ("anyres"); OneVision, arXiv:2408.03326.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from PIL import Image

from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import add, concat, gather_rows, integers, multiply, parameter, reshape
from dragoman.models.config import Config
from dragoman.models.facts import PictureFacts
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node, constant
from dragoman.models.vision import pixels
from dragoman.models.vision.base import PictureLayout, PictureProcessor, TowerGraph, VisionFamily
from dragoman.models.vision.blocks import (
    CLIP,
    SIGLIP,
    VisionTransformer,
    found_at,
    projected,
    projector_weights,
    read_transformer,
    tower_weights,
)
from dragoman.models.vision.tiles import cut
from dragoman.models.weights import Weights
from dragoman.types import Detail, Picture

PIXELS = "pixel_values"

# The tower of configs without a vision_config.
_LARGE_CLIP = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}


class Llava(VisionFamily):
    tower_kind: ClassVar[str] = CLIP
    assumed_tower: ClassVar[dict[str, Any]] = _LARGE_CLIP
    assumed_level: ClassVar[int] = -2
    assumed_selection: ClassVar[str] = "default"
    assumed_placeholder: ClassVar[int] = 32000
    steps_of: ClassVar[tuple[str, ...]] = ("CLIP", "Llava", "Siglip")

    def __init__(self, config: Config, hidden_size: int) -> None:
        part = config.part("vision_config")
        described, assumed = part or Config({}, "config.json vision_config"), self.assumed_tower if part is None else {}
        self.transformer: VisionTransformer = read_transformer(described, self.tower_kind, assumed)
        config.rename({"image_token_id": "image_token_index"})
        self.facts = PictureFacts(config.count("image_token_index", self.assumed_placeholder, least=0))
        self.hidden_size = hidden_size
        self.has_bias = config.flag("multimodal_projector_bias", default=True)
        self.activation = config.choice("projector_hidden_act", ACTIVATIONS, "gelu")
        selection = config.choice("vision_feature_select_strategy", ("default", "full"), self.assumed_selection)
        self.first_row = 1 if selection == "default" else 0
        self.levels = self._read_levels(config)

    @property
    def num_rows(self) -> int:
        return self.transformer.side**2 + self.transformer.has_class_row - self.first_row

    def processor(self, described: Config) -> PictureProcessor:
        kind = pixels.read_kind(described, self.steps_of)
        size = self.transformer.image_size
        if kind == "Siglip":
            steps = pixels.read_steps(described, size, crops=False, numbers=(pixels.HALVES, pixels.HALVES))
        else:
            steps = pixels.read_steps(described, 224, crops=True, numbers=(pixels.CLIP_MEAN, pixels.CLIP_STD))
        color = None
        if kind != "Llava":
            described.expect(do_pad=False)
        elif described.flag("do_pad"):
            red, green, blue = pixels.read_channels(described, "image_mean", pixels.CLIP_MEAN).astype(float).tolist()
            color = (int(red * 255), int(green * 255), int(blue * 255))
        self.check_shape(described, steps)
        placeholder = self.read_placeholder(described)
        pixels.refuse_unread(described)
        layout = PictureLayout(placeholder * self.num_rows, self.num_rows)
        return WholePictures(placeholder, layout, steps, color)

    def tower(self, weights: Weights) -> TowerGraph:
        tiles = self.tiles_input()
        return TowerGraph(reshape(self.projected(tiles.output(0), weights), -1, self.hidden_size), [tiles])

    def tiles_input(self) -> Any:
        size = self.transformer.image_size
        return parameter(PIXELS, -1, 3, size, size)

    def projected(self, tiles: Node, weights: Weights) -> Node:
        """Shapes: [N, 3, size, size] -> [N, rows, hidden of the decoder]."""
        states = self.transformer.states(tiles, tower_weights(weights), self.levels)
        chosen = concat([states[level] for level in self.levels])
        if self.first_row:
            begin, end = integers(self.first_row), integers(2**31 - 1)
            chosen = ops.slice(chosen, begin, end, integers(1), integers(1)).output(0)
        projector, sizes = projector_weights(weights), (self.hidden_size, self.hidden_size)
        matrices = projector.at("linear_1"), projector.at("linear_2")
        return projected(chosen, *matrices, sizes, self.activation, bias=self.has_bias)

    def check_shape(self, described: Config, steps: pixels.PixelSteps) -> None:
        """Raises: ModelError if pictures would not come out as large as the tower takes them."""
        size = self.transformer.image_size
        if steps.shape != (size, size):
            key = "size" if steps.crop is None else "crop_size"
            raise described.error(key, f"a size that makes every picture {size} x {size} pixels, as the tower needs")

    def read_placeholder(self, described: Config) -> str:
        described.skip("patch_size", "vision_feature_select_strategy")
        return pixels.read_text(described, "image_token", "<image>")

    def _read_levels(self, config: Config) -> tuple[int, ...]:
        value = config.value("vision_feature_layer", self.assumed_level)
        count = self.transformer.num_layers + 1
        levels = value if isinstance(value, list) else [value]
        if not levels or not all(
            isinstance(n, int) and not isinstance(n, bool) and -count <= n < count for n in levels
        ):
            raise config.error("vision_feature_layer", f"a number from {-count} to {count - 1}, or a list of such")
        return tuple(level % count for level in levels)


@dataclass(frozen=True, slots=True)
class WholePictures:
    marker: str
    whole: PictureLayout
    steps: pixels.PixelSteps
    color: tuple[int, int, int] | None = None

    def layout(self, width: int, height: int, detail: Detail) -> PictureLayout:
        if self.color is None:
            self.steps.check(width, height)
        else:
            pixels.check_square(width, height)
        return self.whole

    def inputs(self, picture: Picture, detail: Detail) -> dict[str, Array]:
        image = pixels.as_image(picture)
        if self.color is not None:
            image = pixels.squared(image, self.color)
        return {PIXELS: self.steps.apply(image)[None]}


CORNERS = 4
"""The embeddings of a tile layout that make one of a smaller layout."""

_SMALLER = 1.1  # a layout is made smaller if its sides are this factor above the limit


class Grid(NamedTuple):
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class TileLayout:
    """`grids`: sizes in pixels; `tile`: pixels of a tile's side; `side`: its patches; `most_tiles`: 0 = no limit."""

    grids: tuple[tuple[int, int], ...]
    tile: int
    side: int
    most_tiles: int

    def fitted(self, width: int, height: int) -> tuple[int, int]:
        """Height and width with most pixels of the picture, among equals the one with the fewest left over."""
        best, most, least_left = self.grids[0], 0, math.inf
        for high, wide in self.grids:
            scale = min(wide / width, high / height)
            used = min(int(width * scale) * int(height * scale), width * height)
            left = high * wide - used
            if used > most or (used == most and left < least_left):
                best, most, least_left = (high, wide), used, left
        return best

    def grid(self, width: int, height: int) -> Grid:
        high, wide = self.fitted(width, height)
        return Grid(high // self.tile, wide // self.tile)

    def kept(self, width: int, height: int) -> tuple[range, range]:
        grid = self.grid(width, height)
        rows, columns = grid.rows * self.side, grid.columns * self.side
        if width / height > columns / rows:
            padding = (rows - int(round(height * (columns / width), 7))) // 2
            return range(padding, rows - padding), range(columns)
        padding = (columns - int(round(width * (rows / height), 7))) // 2
        return range(rows), range(padding, columns - padding)

    def reduced(self, width: int, height: int) -> tuple[int, int]:
        rows, columns = (len(places) for places in self.kept(width, height))
        if not self.most_tiles:
            return rows, columns
        ratio = math.sqrt(rows * columns / (self.most_tiles * self.side**2))
        return (int(rows // ratio), int(columns // ratio)) if ratio > _SMALLER else (rows, columns)

    def num_embeddings(self, width: int, height: int) -> int:
        rows, columns = self.reduced(width, height)
        return int(self.side**2 + rows * (columns + 1))

    def rows(self, width: int, height: int) -> tuple[Array, Array]:
        """The rows of each embedding and their shares, i64 and f32 [corners, embeddings].

        Rows are those of the whole picture, then of each tile, then the newline.
        """
        grid, side = self.grid(width, height), self.side
        places: Array = np.arange(side**2, (1 + grid.rows * grid.columns) * side**2)
        places = places.reshape(grid.rows, grid.columns, side, side).transpose(0, 2, 1, 3)
        places = places.reshape(grid.rows * side, grid.columns * side)
        down, across = self.kept(width, height)
        places = places[down.start : down.stop, across.start : across.stop]
        newline = (1 + grid.rows * grid.columns) * side**2
        corners, shares = _between(places, self.reduced(width, height)) if self.most_tiles else _alone(places)
        ends = [(0, 0), (0, 0), (0, 1)]
        corners = np.pad(corners, ends, constant_values=newline)
        shares = np.pad(shares, ends)
        shares[0, :, -1] = 1.0
        base, whole = _alone(np.arange(side**2).reshape(side, side), len(corners))
        return (
            np.concatenate([part.reshape(len(corners), -1) for part in (base, corners)], axis=1),
            np.concatenate([part.reshape(len(corners), -1) for part in (whole, shares)], axis=1),
        )

    def base_rows(self) -> tuple[Array, Array]:
        corners, shares = _alone(np.arange(self.side**2 + 1).reshape(1, -1), CORNERS if self.most_tiles else 1)
        return corners.reshape(len(corners), -1), shares.reshape(len(corners), -1)


def _alone(places: Array, num_corners: int = 1) -> tuple[Array, Array]:
    shares = np.zeros((num_corners, *places.shape), dtype=np.float32)
    shares[0] = 1.0
    return np.repeat(places[None], num_corners, axis=0).astype(np.int64), shares


def _between(places: Array, size: tuple[int, int]) -> tuple[Array, Array]:
    if places.shape == size:
        return _alone(places, CORNERS)
    (top, bottom, down), (left, right, across) = (_samples(*pair) for pair in zip(places.shape, size, strict=True))
    corners = [places[np.ix_(rows, columns)] for rows in (top, bottom) for columns in (left, right)]
    shares = [np.outer(high, wide) for high in (1 - down, down) for wide in (1 - across, across)]
    return np.stack(corners).astype(np.int64), np.stack(shares).astype(np.float32)


def _samples(count: int, num_samples: int) -> tuple[Array, Array, Array]:
    scale = np.float32(count / num_samples)
    where = np.maximum((np.arange(num_samples, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5), 0)
    first = where.astype(np.int64)
    return first, np.minimum(first + 1, count - 1), where - first


ROWS, SHARES = "rows", "shares"

_MOST_PIXELS = 16_384  # of a grid's side


class LlavaNext(Llava):
    prefixes: tuple[str, ...] = (*Llava.prefixes, r"(model\.)?image_newline$")
    assumed_grids: ClassVar[tuple[tuple[int, int], ...]] = (
        (336, 672),
        (672, 336),
        (672, 672),
        (1008, 336),
        (336, 1008),
    )
    kind: ClassVar[str] = "LlavaNext"
    is_reduced: ClassVar[bool] = False  # larger layouts are made smaller
    is_cropped: ClassVar[bool] = True  # the middle of every tile is cut out, as by CLIP's processor

    def __init__(self, config: Config, hidden_size: int) -> None:
        super().__init__(config, hidden_size)
        config.expect(use_image_newline_parameter=True)
        if self.num_rows != self.transformer.side**2:
            strategy = '"default"' if self.transformer.has_class_row else '"full"'
            raise config.error("vision_feature_select_strategy", f"{strategy}, as tiles are laid out by their patches")
        self.grids = self._read_grids(config)
        self.most_tiles = self.read_most_tiles(config)

    def read_most_tiles(self, config: Config) -> int:
        return 0

    def processor(self, described: Config) -> PictureProcessor:
        pixels.read_kind(described, (self.kind,))
        size = self.transformer.image_size
        steps = self.read_steps(described)
        self.check_shape(described, steps)
        whole = pixels.read_size(described, "size", size, is_square=not self.is_cropped)
        side = whole.shortest or min(whole.height, whole.width)
        if "image_grid_pinpoints" in described and self._read_grids(described) != self.grids:
            raise described.error("image_grid_pinpoints", "what config.json has")
        described.skip("do_pad")  # about batches
        described.expect(num_image_tokens=self.num_rows, aspect_ratio_setting="anyres")
        placeholder = self.read_placeholder(described)
        color = self.read_background(described)
        pixels.refuse_unread(described)
        return TiledPictures(
            placeholder,
            steps,
            (side, side),
            color,
            TileLayout(self.grids, size, self.transformer.side, self.most_tiles),
        )

    def read_steps(self, described: Config) -> pixels.PixelSteps:
        return pixels.read_steps(described, 224, crops=self.is_cropped, numbers=(pixels.CLIP_MEAN, pixels.CLIP_STD))

    def read_background(self, described: Config) -> tuple[int, int, int] | None:
        """The colour of the square on which a picture of low detail is laid; None = it is stretched."""
        return None

    def tower(self, weights: Weights) -> TowerGraph:
        tiles = self.tiles_input()
        flat = reshape(self.projected(tiles.output(0), weights), -1, self.hidden_size)
        newline = found_at(weights, ("", "model"), "image_newline")
        row = constant(newline.vector(self.hidden_size, "image_newline").reshape(1, -1))
        table = ops.concat([flat, row], axis=0).output(0)
        rows = parameter(ROWS, CORNERS if self.is_reduced else 1, -1, dtype=ov.Type.i64)
        inputs = [tiles, rows]
        if self.is_reduced:
            inputs.append(parameter(SHARES, CORNERS, -1))
            laid = _mixed(table, rows.output(0), inputs[-1].output(0))
        else:
            laid = gather_rows(table, reshape(rows.output(0), -1))
        return TowerGraph(laid, inputs)

    def _read_grids(self, config: Config) -> tuple[tuple[int, int], ...]:
        value = config.value("image_grid_pinpoints", [list(grid) for grid in self.assumed_grids])
        size = self.transformer.image_size
        pairs = value if isinstance(value, list) else []
        if not pairs or not all(isinstance(pair, list) and len(pair) == 2 and _are_sides(pair, size) for pair in pairs):
            wanted = f"a list of pairs of multiples of {size}, the tower's image_size, up to {_MOST_PIXELS}"
            raise config.error("image_grid_pinpoints", wanted)
        return tuple((height, width) for height, width in pairs)


class LlavaOnevision(LlavaNext):
    tower_kind = SIGLIP
    assumed_tower: ClassVar[dict[str, int]] = {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 26,
        "num_attention_heads": 16,
        "image_size": 384,
        "patch_size": 14,
    }
    assumed_level = -1
    assumed_selection = "full"
    assumed_placeholder = 151646
    assumed_grids = tuple((384 * rows, 384 * columns) for rows in range(1, 7) for columns in range(1, 7))
    kind = "LlavaOnevision"
    is_reduced = True
    is_cropped = False

    def read_most_tiles(self, config: Config) -> int:
        name = config.value("vision_aspect_ratio", "anyres_max_9")
        found = re.fullmatch(r"anyres_max_([1-9]\d{0,3})", name) if isinstance(name, str) else None
        if found is None:
            raise config.error("vision_aspect_ratio", '"anyres_max_" and a number from 1 to 9999')
        self.aspect_ratio = name
        return int(found[1])

    def read_background(self, described: Config) -> tuple[int, int, int] | None:
        described.expect(vision_aspect_ratio=self.aspect_ratio)
        described.skip("video_token")
        red, green, blue = pixels.read_channels(described, "image_mean", pixels.CLIP_MEAN).astype(float).tolist()
        return int(red * 255), int(green * 255), int(blue * 255)


@dataclass(frozen=True, slots=True)
class TiledPictures:
    """`whole`: width and height before `steps`. `color`: of the square behind a picture of low detail, None = none."""

    marker: str
    steps: pixels.PixelSteps
    whole: tuple[int, int]
    color: tuple[int, int, int] | None
    tiles: TileLayout

    def layout(self, width: int, height: int, detail: Detail) -> PictureLayout:
        if detail == "low" and self.color is not None:
            pixels.check_square(width, height)
        count = self.tiles.side**2 + 1 if detail == "low" else self.tiles.num_embeddings(width, height)
        return PictureLayout(self.marker * count, count)

    def inputs(self, picture: Picture, detail: Detail) -> dict[str, Array]:
        image = pixels.as_image(picture)
        if detail == "low":
            whole = image if self.color is None else pixels.squared(image, self.color)
            parts = [whole.resize(self.whole, self.steps.resample)]
            rows, shares = self.tiles.base_rows()
        else:
            parts = [image.resize(self.whole, self.steps.resample), *self._cut(image)]
            rows, shares = self.tiles.rows(picture.width, picture.height)
        inputs = {PIXELS: np.stack([self.steps.apply(part) for part in parts]), ROWS: rows}
        return {**inputs, SHARES: shares} if self.tiles.most_tiles else inputs

    def _cut(self, image: Image.Image) -> list[Image.Image]:
        high, wide = self.tiles.fitted(*image.size)
        by_width, by_height = wide / image.width, high / image.height
        if by_width < by_height:
            size = wide, min(math.ceil(image.height * by_width), high)
        else:
            size = min(math.ceil(image.width * by_height), wide), high
        fitted = Image.new("RGB", (wide, high))
        fitted.paste(image.resize(size, self.steps.resample), ((wide - size[0]) // 2, (high - size[1]) // 2))
        tile = self.tiles.tile
        return cut(fitted, high // tile, wide // tile, tile)


def _mixed(table: Node, rows: Node, shares: Node) -> Node:
    """Shapes: table [R, hidden], rows i64 and shares f32 [corners, M] -> [M, hidden]."""
    first, *others = [
        multiply(gather_rows(table, _row(rows, corner)), reshape(_row(shares, corner), -1, 1))
        for corner in range(CORNERS)
    ]
    for part in others:
        first = add(first, part)
    return first


def _row(x: Node, index: int) -> Node:
    return ops.gather(x, ops.constant(np.int64(index)), ops.constant(np.int64(0))).output(0)


def _are_sides(pair: list[object], size: int) -> bool:
    return all(
        isinstance(side, int) and not isinstance(side, bool) and side in range(size, _MOST_PIXELS + 1, size)
        for side in pair
    )
