"""LFM2-VL: pictures of any shape, or tiles and the whole. Sources: SigLIP 2 (arXiv:2502.14786); Liquid AI's release."""

from __future__ import annotations

import math

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from PIL import Image

from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import add, gather_rows, parameter, reshape
from dragoman.models.blocks.norms import layer_norm
from dragoman.models.config import Config
from dragoman.models.facts import PictureFacts
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node, constant
from dragoman.models.vision import pixels
from dragoman.models.vision.base import PictureLayout, TowerGraph, VisionFamily
from dragoman.models.vision.blocks import (
    SIGLIP,
    dense_tensor,
    encoder_layer,
    full_attention,
    patch_vectors,
    projected,
    projector_weights,
    read_sizes,
    tower_weights,
)
from dragoman.models.vision.qwen_vl import PATCHES, WINDOW_MASK, WINDOW_PLACES, WINDOW_ROWS, Cut, Windows, vision_part
from dragoman.models.vision.tiles import cut, nearest_grid, read_grids
from dragoman.models.weights import Weights
from dragoman.types import Detail, Picture

_SHARES, _SQUARES = "shares", "squares"
_PROJECTOR_EPSILON = 1e-5  # no file says it

# transformers' defaults, which a vision_config may leave out.
_ASSUMED = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "patch_size": 16,
    "num_patches": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}


class Lfm2Vl(VisionFamily):
    def __init__(self, config: Config, hidden_size: int) -> None:
        self.hidden_size = hidden_size
        config.rename({"image_token_index": "image_token_id"})
        config.expect(vision_feature_layer=-1)
        self.facts = PictureFacts(config.count("image_token_id", 396, least=0))
        self.has_bias = config.flag("projector_bias", True)
        self.has_norm = config.flag("projector_use_layernorm", True)
        self.inner_size = config.count("projector_hidden_size", 2560)
        self.activation = config.choice("projector_hidden_act", ACTIVATIONS, "gelu")
        vision = vision_part(config)
        vision.assume(model_type="siglip2_vision_model", **_ASSUMED)
        vision.choice("model_type", ("siglip2_vision_model",))
        vision.skip("vision_use_head")  # a vector for the whole picture, not needed here
        self.cut = Cut(vision.count("patch_size"), 1, config.count("downsample_factor", 2))
        self.side = math.isqrt(vision.count("num_patches"))
        if self.side**2 != vision.count("num_patches"):
            raise vision.error("num_patches", "a square number")
        # the table of places has an entry for each patch of a picture of this size
        self.transformer = read_sizes(vision, SIGLIP, {}, self.side * self.cut.patch)

    def processor(self, described: Config) -> Lfm2VlPictures:
        return Lfm2VlPictures(described, self.cut, self.side)

    def tower(self, weights: Weights) -> TowerGraph:
        shape, body = self.transformer, tower_weights(weights)
        size, windows = shape.hidden_size, Windows(-1)
        patches, shares = parameter(PATCHES, -1, self.cut.width), parameter(_SHARES, -1, self.side**2)
        squares = parameter(_SQUARES, -1, dtype=ov.Type.i64)
        embeddings = body.at("embeddings")
        x = patch_vectors(patches.output(0), embeddings.at("patch_embedding"), (size, self.cut.width), bias=True)
        table = dense_tensor(embeddings.at("position_embedding"), (self.side**2, size)).astype(np.float32)
        x = add(x, ops.matmul(shares.output(0), constant(table), False, False).output(0))

        def attend(q: Node, k: Node, v: Node) -> Node:
            q, k, v = (windows.cut(part) for part in (q, k, v))
            attended = full_attention(q, k, v, shape.layer.num_heads, windows.mask)
            return windows.join(reshape(attended, -1, size))

        for index in range(shape.num_layers):
            x = encoder_layer(x, body.at(f"encoder.layers.{index}"), shape.layer, attend=attend)
        shape.skip_whole(body)
        x = gather_rows(shape.last_norm(x, body), squares.output(0))
        x, projector = reshape(x, -1, size * self.cut.merge**2), projector_weights(weights)
        x = layer_norm(x, projector.at("layer_norm"), _PROJECTOR_EPSILON) if self.has_norm else x
        matrices, sizes = (projector.at("linear_1"), projector.at("linear_2")), (self.inner_size, self.hidden_size)
        rows = projected(x, *matrices, sizes, self.activation, bias=self.has_bias)
        return TowerGraph(rows, [patches, shares, squares, *windows.inputs])


class Lfm2VlPictures:
    """See `PictureProcessor`. Detail "low": the whole picture alone; "auto" and "high": as the file says.

    Shapes: pixel_values f32 [patches, numbers of a patch], tile by tile; shares f32 [patches, places of the table].
    """

    def __init__(self, described: Config, cut: Cut, side: int) -> None:
        pixels.read_kind(described, ("Lfm2Vl",))
        described.expect(do_resize=True, do_pad=True, do_center_crop=False)
        described.assume(downsample_factor=2, encoder_patch_size=16)
        described.expect(downsample_factor=cut.merge, encoder_patch_size=cut.patch)
        # padding, not needed here, and keys that the reference does not read
        described.skip("size", "crop_size", "default_to_square", "max_num_patches", "return_row_col_info")
        self._cut, self._side = cut, side
        self._values = pixels.read_values(described, pixels.HALVES, pixels.HALVES)
        self._resample = pixels.read_resample(described, Image.Resampling.BILINEAR)
        self._fewest = described.count("min_image_tokens", 64)
        self._most = described.count("max_image_tokens", 256)
        if self._most < self._fewest:
            raise described.error("max_image_tokens", f"at least min_image_tokens, {self._fewest}")
        self._tolerance = described.positive("max_pixels_tolerance", 2.0)
        self._tile = described.count("tile_size", 512)
        if self._tile % cut.side:
            raise described.error("tile_size", f"a multiple of {cut.side}, the pixels of an embedding's side")
        described.assume(min_tiles=2, max_tiles=10)
        self._grids = read_grids(described, "min_tiles", "max_tiles")
        is_split = described.flag("do_image_splitting", True) and self._grids != ((1, 1),)
        if is_split and (1, 1) in self._grids:  # the reference counts the embeddings of such a tile wrongly
            raise described.error("min_tiles", "at least 2, or max_tiles 1")
        self._is_split = is_split
        self._has_whole = described.flag("use_thumbnail", True)
        self.marker = pixels.read_text(described, "image_token", "<image>")
        has_marks = described.flag("use_image_special_tokens", True)
        names = {"start": "<|image_start|>", "thumbnail": "<|img_thumbnail|>", "end": "<|image_end|>"}
        marks = {name: pixels.read_text(described, f"image_{name}_token", text) for name, text in names.items()}
        self._marks = marks if has_marks else None
        pixels.refuse_unread(described)

    def layout(self, width: int, height: int, detail: Detail) -> PictureLayout:
        (columns, rows), whole = self._grid(width, height, detail), self._whole(width, height)
        per_tile = (self._tile // self._cut.side) ** 2
        of_whole = whole[0] * whole[1] // self._cut.side**2
        mark = dict.fromkeys(("start", "thumbnail", "end"), "") if self._marks is None else self._marks
        tiles = [
            ("" if self._marks is None else f"<|img_row_{row + 1}_col_{column + 1}|>") + self.marker * per_tile
            for row in range(rows)
            for column in range(columns)
        ]
        count = per_tile * len(tiles)
        if not tiles or self._has_whole:
            tiles.append((mark["thumbnail"] if tiles else "") + self.marker * of_whole)
            count += of_whole
        return PictureLayout(mark["start"] + "".join(tiles) + mark["end"], count)

    def inputs(self, picture: Picture, detail: Detail) -> dict[str, Array]:
        columns, rows = self._grid(picture.width, picture.height, detail)
        image, size = pixels.as_image(picture), self._tile
        tiles: list[Image.Image] = []
        if columns:
            tiles = cut(image.resize((columns * size, rows * size), self._resample), rows, columns, size)
        if not tiles or self._has_whole:
            tiles.append(image.resize(self._whole(*image.size), self._resample))
        patch = self._cut.patch
        shapes = [(tile.height // patch, tile.width // patch) for tile in tiles]
        starts = np.cumsum([0, *(high * wide for high, wide in shapes)])
        squares = [
            start + self._cut.in_squares(np.arange(high * wide).reshape(high, wide))
            for start, (high, wide) in zip(starts, shapes, strict=False)
        ]
        return {
            PATCHES: np.concatenate([pixels.flat_patches(tile, self._values, patch) for tile in tiles]),
            _SHARES: np.concatenate([_shares(self._side, *shape) for shape in shapes]),
            _SQUARES: np.concatenate(squares).astype(np.int64),
            **_tile_tables([high * wide for high, wide in shapes]),
        }

    def _grid(self, width: int, height: int, detail: Detail) -> tuple[int, int]:
        side, patch = self._cut.side, self._cut.patch
        pixels_of = max(patch, round(width / side) * side) * max(patch, round(height / side) * side)
        is_large = pixels_of > self._most * side**2 * self._tolerance
        if detail == "low" or not self._is_split or not is_large:
            return 0, 0
        return nearest_grid(self._grids, width, height, self._tile)

    def _whole(self, width: int, height: int) -> tuple[int, int]:
        side = self._cut.side
        fewest, most = self._fewest * side**2, self._most * side**2
        sides = max(side, round(width / side) * side), max(side, round(height / side) * side)
        scale = 1.0
        if sides[0] * sides[1] > most:
            scale = math.sqrt(height * width / most)
            sides = (
                max(side, math.floor(width / scale / side) * side),
                max(side, math.floor(height / scale / side) * side),
            )
        elif sides[0] * sides[1] < fewest:
            scale = math.sqrt(fewest / (height * width))
            sides = math.ceil(width * scale / side) * side, math.ceil(height * scale / side) * side
        if sides[0] * sides[1] > 4 * most:  # one side is rounded up to a square
            raise ValueError(
                f"a picture of {width} x {height} pixels is too long for this model: it becomes one of "
                f"{sides[0]} x {sides[1]}, allowed: at most {4 * most} pixels"
            )
        return sides


def _shares(side: int, rows: int, columns: int) -> Array:
    """Bilinear shares of the table's places, smoothed if it shrinks, f32 [patches, side * side]."""
    down, across = (_shares_of_side(side, count) for count in (rows, columns))
    return (down[:, None, :, None] * across[None, :, None, :]).reshape(rows * columns, side * side)


def _shares_of_side(side: int, count: int) -> Array:
    scale = np.float32(side) / np.float32(count)
    centers = (np.arange(count, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    distances = np.abs(np.arange(side, dtype=np.float32) - centers[:, None]) / np.maximum(scale, np.float32(1))
    shares = np.maximum(np.float32(1) - distances, 0)
    result: Array = shares / shares.sum(axis=1, keepdims=True)
    return result


def _tile_tables(counts: list[int]) -> dict[str, Array]:
    most, starts = max(counts), np.cumsum([0, *counts])
    within = np.arange(most)
    is_there = within < np.array(counts)[:, None]
    rows = np.where(is_there, starts[:-1, None] + within, 0)
    mask = np.where(is_there, 0, np.finfo(np.float32).min).astype(np.float32)
    return {
        WINDOW_ROWS: rows.astype(np.int64),
        WINDOW_MASK: mask[:, None, None],
        WINDOW_PLACES: np.flatnonzero(is_there).astype(np.int64),
    }
