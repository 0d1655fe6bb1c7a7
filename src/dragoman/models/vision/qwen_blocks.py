"""The blocks of Qwen's towers. Sources: arXiv:2409.12191, section 2.1; windows: arXiv:2502.13923, section 2.1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import gather_rows, reshape, scalar, split, width
from dragoman.models.blocks.rotary import Angles, apply_rotary, rotary_angles
from dragoman.models.config import Config, ModelError
from dragoman.models.facts import RotaryRule
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node
from dragoman.models.vision.blocks import full_attention, tower_input
from dragoman.models.vision.qwen_pictures import Cut
from dragoman.models.vision.transformer import found_at
from dragoman.models.weights import Weights

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
        rows = tower_input(WINDOW_ROWS, -1, num_patches, dtype=ov.Type.i64)
        mask = tower_input(WINDOW_MASK, -1, 1, 1, num_patches)
        places = tower_input(WINDOW_PLACES, -1, dtype=ov.Type.i64)
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
