"""The towers of Qwen2-VL, 2.5-VL, 3-VL and 3.5, their blocks, and the preparation of pictures, which is pure, on any thread.

Sources: Qwen2-VL, arXiv:2409.12191, section 2.1; Qwen2.5-VL's windows, arXiv:2502.13923, section 2.1; Qwen3-VL's release;
DeepStack, arXiv:2406.04334. Qwen 3.5 has Qwen3-VL's without further levels.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import ACTIVATIONS, gated_mlp, plain_mlp
from dragoman.models.blocks.nodes import add, concat, gather_rows, parameter, reshape, scalar, split, width
from dragoman.models.blocks.norms import layer_norm, rms_norm
from dragoman.models.blocks.rotary import Angles, apply_rotary, rotary_angles
from dragoman.models.config import Config, ModelError
from dragoman.models.facts import PictureFacts, RotaryRule
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node, embedding_table
from dragoman.models.vision import pixels
from dragoman.models.vision.base import PictureLayout, PictureProcessor, TowerGraph, VisionFamily
from dragoman.models.vision.blocks import (
    dense_tensor,
    end_of_part,
    found_at,
    full_attention,
    patch_vectors,
)
from dragoman.models.weights import Weights
from dragoman.types import Detail, Picture


class QwenTower(VisionFamily):
    prefixes = (r"visual\.", r"model\.visual\.")
    has_patch_bias = False
    mlp_names: ClassVar[tuple[str, str]] = ("fc1", "fc2")

    def __init__(self, config: Config, hidden_size: int) -> None:
        vision = vision_part(config)
        self.out_size = hidden_size
        self.tower_facts = self.read_facts(vision, hidden_size)
        vision.refuse_unread()
        self.facts = PictureFacts(config.count("image_token_id", least=0), self.num_levels)

    # --- config.json --------------------------------------------------------------------------------------------------

    @abstractmethod
    def read_facts(self, vision: Config, hidden_size: int) -> TowerFacts: ...

    num_levels: int = 1

    def processor(self, described: Config) -> PictureProcessor:
        return QwenPictures(described, self.tower_facts.cut, self.tables)

    def tables(self, rows: int, columns: int) -> dict[str, Array]:
        return {POSITIONS: self.tower_facts.cut.positions(rows, columns)}

    # --- the graph ----------------------------------------------------------------------------------------------------

    def tower(self, weights: Weights) -> TowerGraph:
        facts, body = self.tower_facts, tower_body(weights)
        patches = parameter(PATCHES, -1, facts.cut.width)
        positions = parameter(POSITIONS, 2, -1, dtype=ov.Type.i64)
        learnt, windows = self.learnt_inputs(), self.windows()
        kernel = (facts.hidden_size, 3, facts.cut.frames, facts.cut.patch, facts.cut.patch)
        x = patch_vectors(patches.output(0), body.at("patch_embed.proj"), kernel, bias=self.has_patch_bias)
        x = self.placed(x, learnt, body)
        angles = patch_angles(positions.output(0), facts)
        levels: list[Node] = []
        for index in range(facts.num_layers):
            x = self.block(x, body.at(f"blocks.{index}"), angles, None if self.sees_all(index) else windows)
            levels.extend(self.level(x, body, index))
        inputs = [patches, positions, *learnt, *(windows.inputs if windows is not None else [])]
        return TowerGraph(concat([self.last(x, body), *levels]), inputs)

    def learnt_inputs(self) -> list[Any]:
        return []

    def placed(self, x: Node, inputs: list[Any], body: Weights) -> Node:
        """The vectors with learnt places. Shape: [patches, hidden] -> the same."""
        return x

    def windows(self) -> Windows | None:
        return None

    def sees_all(self, index: int) -> bool:
        return True

    def norm(self, x: Node, weights: Weights) -> Node:
        return layer_norm(x, weights, NORM_EPSILON)

    def mlp(self, x: Node, weights: Weights) -> Node:
        up, down = (weights.at(name) for name in self.mlp_names)
        return plain_mlp(x, up, down, self.tower_facts.inner_size, self.tower_facts.activation)

    def block(self, x: Node, weights: Weights, angles: Angles, windows: Windows | None) -> Node:
        normed = self.norm(x, weights.at("norm1"))
        x = end_of_part(add(x, attention(normed, weights.at("attn"), self.tower_facts, angles, windows)))
        return end_of_part(add(x, self.mlp(self.norm(x, weights.at("norm2")), weights.at("mlp"))))

    def level(self, x: Node, body: Weights, index: int) -> list[Node]:
        return []

    def last(self, x: Node, body: Weights) -> Node:
        """The embeddings of the first level. Shapes: [patches, hidden] -> [squares of patches, decoder's hidden]."""
        merger = body.at("merger")
        normed = self.norm(x, merger.at("ln_q"))
        return merged(normed, merger.at("mlp.0"), merger.at("mlp.2"), self.tower_facts, self.out_size)


class Qwen2VL(QwenTower):
    def read_facts(self, vision: Config, hidden_size: int) -> TowerFacts:
        check_output(vision, "hidden_size", hidden_size)
        inner_size = vision.positive("mlp_ratio", 4.0) * vision.count("embed_dim")
        return read_tower(vision, hidden_key="embed_dim", inner_size=int(inner_size), activation="quick_gelu")


class Qwen25VL(QwenTower):
    def read_facts(self, vision: Config, hidden_size: int) -> TowerFacts:
        check_output(vision, "out_hidden_size", hidden_size)
        vision.skip("tokens_per_second")  # for films
        inner_size = vision.count("intermediate_size")
        facts = read_tower(vision, hidden_key="hidden_size", inner_size=inner_size, activation="silu")
        self._whole = layer_indexes(vision, "fullatt_block_indexes", facts.num_layers)
        self._side = vision.count("window_size", least=facts.cut.side) // facts.cut.side
        return facts

    def tables(self, rows: int, columns: int) -> dict[str, Array]:
        cut = self.tower_facts.cut
        tables = super().tables(rows, columns)
        return tables | window_tables(cut, rows, columns, self._side) if self._has_windows else tables

    def windows(self) -> Windows | None:
        return Windows((self._side * self.tower_facts.cut.merge) ** 2) if self._has_windows else None

    def sees_all(self, index: int) -> bool:
        return index in self._whole

    @property
    def _has_windows(self) -> bool:
        return len(self._whole) < self.tower_facts.num_layers

    def norm(self, x: Node, weights: Weights) -> Node:
        return rms_norm(x, weights, NORM_EPSILON)

    def mlp(self, x: Node, weights: Weights) -> Node:
        facts = self.tower_facts
        gate, up, down = (weights.at(f"{name}_proj") for name in ("gate", "up", "down"))
        return gated_mlp(x, gate, up, down, facts.inner_size, facts.activation, bias=True)


def layer_indexes(vision: Config, key: str, num_layers: int) -> tuple[int, ...]:
    value: Any = vision.value(key)
    is_list = isinstance(value, list) and all(type(item) is int and 0 <= item < num_layers for item in value)
    if not is_list or sorted(set(value)) != value:
        raise vision.error(key, f"a list of layers below {num_layers} in ascending order")
    return tuple(value)


CORNERS, SHARES = "position_corners", "position_shares"


class Qwen3VL(QwenTower):
    has_patch_bias = True
    mlp_names = ("linear_fc1", "linear_fc2")

    def read_facts(self, vision: Config, hidden_size: int) -> TowerFacts:
        check_output(vision, "out_hidden_size", hidden_size)
        inner_size = vision.count("intermediate_size")
        facts = read_tower(vision, hidden_key="hidden_size", inner_size=inner_size, activation="gelu_pytorch_tanh")
        vision.assume(deepstack_visual_indexes=[])
        self._levels = layer_indexes(vision, "deepstack_visual_indexes", facts.num_layers)
        self.num_levels = 1 + len(self._levels)
        num_positions = vision.count("num_position_embeddings")
        self._side = math.isqrt(num_positions)
        if self._side**2 != num_positions:
            raise vision.error("num_position_embeddings", "a square number")
        return facts

    def tables(self, rows: int, columns: int) -> dict[str, Array]:
        """See `QwenTower`. Positions lie between four of the table, weighted by nearness."""
        cut = self.tower_facts.cut
        down, right = (_between(length, self._side) for length in (rows, columns))
        corners = [row[:, None] * self._side + column for row, _ in down for column, _ in right]
        shares = [near[:, None] * close for _, near in down for _, close in right]
        patches = [cut.in_squares(np.stack(grids, axis=-1)).T for grids in (corners, shares)]
        return super().tables(rows, columns) | {
            CORNERS: np.ascontiguousarray(patches[0].astype(np.int64)),
            SHARES: np.ascontiguousarray(patches[1].astype(np.float32)),
        }

    def learnt_inputs(self) -> list[Any]:
        return [parameter(CORNERS, 4, -1, dtype=ov.Type.i64), parameter(SHARES, 4, -1)]

    def placed(self, x: Node, inputs: list[Any], body: Weights) -> Node:
        table = dense_tensor(body.at("pos_embed"), (self._side**2, self.tower_facts.hidden_size))
        corners, shares = (parameter.output(0) for parameter in inputs)
        return add(x, weighted_rows(embedding_table(table, body.storage), corners, shares))

    def level(self, x: Node, body: Weights, index: int) -> list[Node]:
        if index not in self._levels:
            return []
        merger = body.at(f"deepstack_merger_list.{self._levels.index(index)}")
        normed = self.norm(reshape(x, -1, self.tower_facts.merged_size), merger.at("norm"))
        return [self._merged(normed, merger)]

    def last(self, x: Node, body: Weights) -> Node:
        merger = body.at("merger")
        return self._merged(self.norm(x, merger.at("norm")), merger)

    def _merged(self, x: Node, merger: Weights) -> Node:
        return merged(x, merger.at("linear_fc1"), merger.at("linear_fc2"), self.tower_facts, self.out_size)


def _between(length: int, side: int) -> list[tuple[Array, Array]]:
    places = np.linspace(0, side - 1, length)
    below = places.astype(np.int64)
    part = places - below
    return [(below, 1 - part), (np.minimum(below + 1, side - 1), part)]


WINDOW_ROWS, WINDOW_MASK, WINDOW_PLACES = "window_rows", "window_mask", "window_places"
NORM_EPSILON = 1e-6  # of all these towers; no file says it


@dataclass(frozen=True, slots=True)
class TowerFacts:
    num_layers: int
    hidden_size: int
    num_heads: int
    inner_size: int
    activation: str
    cut: Cut

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def merged_size(self) -> int:
        return self.hidden_size * self.cut.merge**2


def vision_part(config: Config) -> Config:
    part = config.part("vision_config")
    if part is None:
        raise ModelError("config.json has no vision_config, allowed: the description of its tower")
    return part


def read_tower(vision: Config, *, hidden_key: str, inner_size: int, activation: str) -> TowerFacts:
    # in_chans and spatial_patch_size are older names; files have both
    vision.expect(in_channels=3, in_chans=3, spatial_patch_size=vision.count("patch_size"))
    cut = Cut(vision.count("patch_size"), vision.count("temporal_patch_size", 2), vision.count("spatial_merge_size", 2))
    hidden_size, num_heads = vision.count(hidden_key), vision.count("num_heads")
    if hidden_size % (4 * num_heads):  # a quarter of each head for the row, and one for the column, in pairs
        raise vision.error(hidden_key, f"a multiple of 4 * num_heads, {4 * num_heads}")
    act = vision.choice("hidden_act", ACTIVATIONS, activation)
    return TowerFacts(vision.count("depth"), hidden_size, num_heads, inner_size, act, cut)


def axial_base(vision: Config, base: float) -> float:
    rotary = vision.part("rope_parameters")
    if rotary is None:
        return base
    rotary.choice("rope_type", ("axial", "default"), "axial")
    base = rotary.positive("rope_theta", base)
    rotary.refuse_unread()
    return base


def check_output(vision: Config, key: str, hidden_size: int) -> None:
    if vision.count(key) != hidden_size:
        raise vision.error(key, f"the decoder's hidden_size, {hidden_size}")


class Windows:
    """Attention within windows of `num_patches` patches, padded to whole ones: linear in the size of the picture."""

    def __init__(self, num_patches: int) -> None:
        rows = parameter(WINDOW_ROWS, -1, num_patches, dtype=ov.Type.i64)
        mask = parameter(WINDOW_MASK, -1, 1, 1, num_patches)
        places = parameter(WINDOW_PLACES, -1, dtype=ov.Type.i64)
        self.inputs = [rows, mask, places]
        self.mask: Node = mask.output(0)
        self._rows, self._places = rows.output(0), places.output(0)

    def cut(self, x: Node) -> Node:
        """Shapes: [patches, size] -> [windows, patches of a window, size]."""
        return gather_rows(x, self._rows)

    def join(self, x: Node) -> Node:
        return gather_rows(x, self._places)


def window_tables(cut: Cut, rows: int, columns: int, side: int) -> dict[str, Array]:
    """The inputs of `Windows` for a grid of patches. `side`: embeddings along a window's side."""
    down, right = -(-rows // cut.merge // side), -(-columns // cut.merge // side)
    whole = np.full((down * side, right * side), -1, dtype=np.int64)
    height, breadth = rows // cut.merge, columns // cut.merge
    whole[:height, :breadth] = np.arange(height * breadth).reshape(height, breadth)
    squares = whole.reshape(down, side, right, side).swapaxes(1, 2).reshape(-1, side**2, 1)
    patches = np.where(squares < 0, -1, squares * cut.merge**2 + np.arange(cut.merge**2)).reshape(len(squares), -1)
    places = np.empty(rows * columns, dtype=np.int64)
    flat = patches.reshape(-1)
    places[flat[flat >= 0]] = np.flatnonzero(flat >= 0)
    # any patch may stand in the place of none: it is masked
    mask = np.where(patches < 0, np.finfo(np.float32).min, 0).astype(np.float32)
    return {
        WINDOW_ROWS: np.maximum(patches, 0),
        WINDOW_MASK: mask[:, None, None],
        WINDOW_PLACES: places,
    }


def patch_angles(positions: Node, facts: TowerFacts) -> Angles:
    """Half of heads' pairs by the row, half by the column. Shape: positions i64 [2, patches]."""
    quarter = facts.head_size // 4
    frequencies = tuple(10_000.0 ** (-i / quarter) for i in range(quarter))
    rule = RotaryRule(frequencies * 2, axes=(0,) * quarter + (1,) * quarter)
    return rotary_angles(positions, None, rule)


def attention(x: Node, weights: Weights, facts: TowerFacts, angles: Angles, windows: Windows | None) -> Node:
    """Every patch sees every other, or those of its window. Shapes: [patches, hidden] -> the same."""
    size, heads = facts.hidden_size, facts.num_heads
    q, k, v = split(linear(x, weights.at("qkv"), 3 * size, bias=True), [size] * 3)
    q, k = (apply_rotary(reshape(part, -1, heads, 1, facts.head_size), angles) for part in (q, k))
    parts = [reshape(part, -1, size) for part in (q, k, v)]
    if windows is None:
        q, k, v = (reshape(part, 1, -1, size) for part in parts)
        attended = reshape(full_attention(q, k, v, heads), -1, size)
    else:
        q, k, v = (windows.cut(part) for part in parts)
        attended = windows.join(reshape(full_attention(q, k, v, heads, windows.mask), -1, size))
    return linear(attended, weights.at("proj"), size, bias=True)


def merged(x: Node, first: Weights, second: Weights, facts: TowerFacts, out_size: int) -> Node:
    """Embeddings of squares of patches. Shapes: [patches, hidden], or [squares, merged] -> [squares, out_size]."""
    flat = x if width(x) == facts.merged_size else reshape(x, -1, facts.merged_size)
    raised = ACTIVATIONS["gelu"](linear(flat, first, facts.merged_size, bias=True))
    return linear(raised, second, out_size, bias=True)


def tower_body(weights: Weights) -> Weights:
    return found_at(weights, ("model.visual", "visual"), "patch_embed.proj.weight")


def weighted_rows(table: Node, corners: Node, shares: Node) -> Node:
    """Shapes: table [rows, size], corners i64 and shares f32 [n, patches] -> [patches, size]."""
    rows = ops.multiply(gather_rows(table, corners), ops.unsqueeze(shares, scalar(-1, np.int64)))
    return ops.reduce_sum(rows, scalar(0, np.int64)).output(0)


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
