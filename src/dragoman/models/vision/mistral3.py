"""Mistral 3 and Ministral 3: Pixtral's tower. Sources: Pixtral (arXiv:2410.07073); Mistral Small 3.1's release."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models.blocks.linear import linear, linears
from dragoman.models.blocks.mlp import ACTIVATIONS, gated_mlp
from dragoman.models.blocks.nodes import add, parameter, reshape
from dragoman.models.blocks.norms import rms_norm
from dragoman.models.blocks.rotary import Angles, apply_rotary, rotary_angles
from dragoman.models.config import Config
from dragoman.models.facts import PictureFacts, RotaryRule
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node
from dragoman.models.vision import pixels
from dragoman.models.vision.base import PictureLayout, TowerGraph, VisionFamily
from dragoman.models.vision.blocks import (
    end_of_part,
    found_at,
    full_attention,
    patch_vectors,
    projected,
    projector_weights,
    transpose,
)
from dragoman.models.vision.qwen_vl import PATCHES, POSITIONS, Cut, axial_base, vision_part
from dragoman.models.weights import Weights
from dragoman.types import Detail, Picture

_EPSILON = 1e-5  # of the tower's norms; no file says it
_LOW_SIDE = 512  # what OpenAI's API reference says of detail "low"

# transformers' defaults, which a vision_config may leave out.
_ASSUMED = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 16,
    "hidden_act": "gelu",
}


class Mistral3(VisionFamily):
    def __init__(self, config: Config, hidden_size: int) -> None:
        self.hidden_size = hidden_size
        config.rename({"image_token_id": "image_token_index"})
        self.facts = PictureFacts(config.count("image_token_index", 10, least=0))
        self.has_bias = config.flag("multimodal_projector_bias")
        self.activation = config.choice("projector_hidden_act", ACTIVATIONS, "gelu")
        text = config.part("text_config")
        # the decoder's key holds for the projector's norm, too
        self.epsilon = 1e-6 if text is None else text.positive("rms_norm_eps", 1e-5)
        vision = vision_part(config)
        vision.assume(model_type="pixtral", **_ASSUMED)
        vision.choice("model_type", ("pixtral",))
        self.cut = Cut(vision.count("patch_size"), 1, config.count("spatial_merge_size", 2))
        self._read_sizes(vision)
        self.num_layers = self._read_layer(config, vision.count("num_hidden_layers"))
        self.num_skipped = vision.count("num_hidden_layers") - self.num_layers
        vision.refuse_unread()

    def _read_sizes(self, vision: Config) -> None:
        vision.expect(num_channels=3)
        self.size, self.num_heads = vision.count("hidden_size"), vision.count("num_attention_heads")
        if self.size % (4 * self.num_heads):  # half of each head's pairs for the row, half for the column
            raise vision.error("hidden_size", f"a multiple of 4 * num_attention_heads, {4 * self.num_heads}")
        self.head_size = self.size // self.num_heads
        vision.expect(head_dim=self.head_size)
        self.inner_size = vision.count("intermediate_size")
        self.inner_activation = vision.choice("hidden_act", ACTIVATIONS)
        vision.count("image_size", 1024)  # without effect: the tower has no largest size
        theta = axial_base(vision, vision.positive("rope_theta", 10_000.0))
        inverse = [theta ** (-2 * i / self.head_size) for i in range(self.head_size // 2)]
        quarter = self.head_size // 4
        self.rule = RotaryRule((*inverse[0::2], *inverse[1::2]), axes=(0,) * quarter + (1,) * quarter)

    @staticmethod
    def _read_layer(config: Config, num_layers: int) -> int:
        value: Any = config.value("vision_feature_layer", -1)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        count = num_layers + 1
        if type(value) is not int or not -count <= value < count:
            raise config.error("vision_feature_layer", f"a number from {-count} to {num_layers}")
        return value % count

    def processor(self, described: Config) -> PixtralPictures:
        return PixtralPictures(described, self.cut)

    def tower(self, weights: Weights) -> TowerGraph:
        picture = parameter(PATCHES, 1, 3, -1, -1)
        positions = parameter(POSITIONS, 2, -1, dtype=ov.Type.i64)
        body = found_at(weights, ("model.vision_tower", "vision_tower"), "patch_conv.weight")
        kernel = (self.size, 3, self.cut.patch, self.cut.patch)
        x = patch_vectors(self._patches(picture.output(0)), body.at("patch_conv"), kernel, bias=False)
        x = rms_norm(x, body.at("ln_pre"), _EPSILON)
        angles = rotary_angles(positions.output(0), None, self.rule)
        for index in range(self.num_layers):
            x = self._layer(x, body.at(f"transformer.layers.{index}"), angles)
        for index in range(self.num_layers, self.num_layers + self.num_skipped):
            body.at(f"transformer.layers.{index}").skip_all()
        return TowerGraph(self._projected(x, projector_weights(weights)), [picture, positions])

    def _patches(self, picture: Node) -> Node:
        """Square after square. Shapes: [1, 3, height, width] -> [patches, numbers of a patch]."""
        patch, merge = self.cut.patch, self.cut.merge
        squares = ops.space_to_depth(picture, "depth_first", self.cut.side).output(0)
        cut = reshape(squares, 3, merge, patch, merge, patch, -1)
        return reshape(transpose(cut, 5, 1, 3, 0, 2, 4), -1, 3 * patch**2)

    def _layer(self, x: Node, weights: Weights, angles: Angles) -> Node:
        size, heads = self.size, self.num_heads
        normed, part = rms_norm(x, weights.at("attention_norm"), _EPSILON), weights.at("attention")
        names = [part.at(f"{name}_proj") for name in "qkv"]
        q, k, v = linears(normed, names, [size] * 3, is_fused=weights.storage.format.fuses_attention)
        q, k = (apply_rotary(reshape(y, -1, heads, 1, self.head_size), angles) for y in (q, k))
        q, k, v = (reshape(y, 1, -1, size) for y in (q, k, v))
        attended = full_attention(q, k, v, heads)
        x = end_of_part(add(x, linear(reshape(attended, -1, size), part.at("o_proj"), size)))
        gate, up, down = (weights.at(f"feed_forward.{name}_proj") for name in ("gate", "up", "down"))
        normed = rms_norm(x, weights.at("ffn_norm"), _EPSILON)
        return end_of_part(add(x, gated_mlp(normed, gate, up, down, self.inner_size, self.inner_activation)))

    def _projected(self, x: Node, weights: Weights) -> Node:
        """Shapes: [patches, size] -> [squares, hidden of the decoder]."""
        normed = rms_norm(x, weights.at("norm"), self.epsilon)
        squares = reshape(normed, -1, self.cut.merge**2, self.size)
        columns = reshape(transpose(squares, 0, 2, 1), -1, self.size * self.cut.merge**2)
        merged = linear(columns, weights.at("patch_merger.merging_layer"), self.size)
        matrices, sizes = (weights.at("linear_1"), weights.at("linear_2")), (self.hidden_size, self.hidden_size)
        return projected(merged, *matrices, sizes, self.activation, bias=self.has_bias)


class PixtralPictures:
    """See `PictureProcessor`. A mark ends each row of squares. Detail "low": a longer side of at most 512 pixels."""

    def __init__(self, described: Config, cut: Cut) -> None:
        pixels.read_kind(described, ("Pixtral",))
        described.expect(do_resize=True, do_center_crop=False, spatial_merge_size=cut.merge)
        described.skip("crop_size", "do_pad", "default_to_square")  # pad: to the largest of several pictures
        # both files say it; the reference's processor takes squares of that size instead
        patch = pixels.read_size(described, "patch_size", cut.patch, is_square=True)
        if (patch.height, patch.width) != (cut.patch, cut.patch):
            raise described.error("patch_size", f"{cut.patch}, as config.json says")
        self._cut, self._longest = cut, _longest_edges(described)
        self._resample = pixels.read_resample(described)
        self._values = pixels.read_values(described, pixels.CLIP_MEAN, pixels.CLIP_STD)
        self.marker = pixels.read_text(described, "image_token", "[IMG]")
        self._row_end = pixels.read_text(described, "image_break_token", "[IMG_BREAK]")
        self._end = pixels.read_text(described, "image_end_token", "[IMG_END]")
        pixels.refuse_unread(described)

    def layout(self, width: int, height: int, detail: Detail) -> PictureLayout:
        columns, rows = (length // self._cut.side for length in self._size(width, height, detail))
        text = self._row_end.join([self.marker * columns] * rows) + self._end
        return PictureLayout(text, rows * columns)

    def inputs(self, picture: Picture, detail: Detail) -> dict[str, Array]:
        size = self._size(picture.width, picture.height, detail)
        image = pixels.as_image(picture).resize(size, self._resample)
        columns, rows = (length // self._cut.patch for length in size)
        values = pixels.normalized(np.asarray(image), self._values)
        return {PATCHES: values[None], POSITIONS: self._cut.positions(rows, columns)}

    def _size(self, width: int, height: int, detail: Detail) -> tuple[int, int]:
        widest, highest = (min(side, _LOW_SIDE) if detail == "low" else side for side in self._longest)
        ratio = max(height / highest, width / widest, 1.0)
        sides = math.floor(width / ratio), math.floor(height / ratio)
        if not all(sides):
            raise ValueError(
                f"a picture of {width} x {height} pixels is too long for this model: a side shrinks to nothing "
                f"when the picture is scaled to fit into {widest} x {highest}"
            )
        side = self._cut.side
        return -(-sides[0] // side) * side, -(-sides[1] // side) * side


def _longest_edges(described: Config) -> tuple[int, int]:
    value: Any = described.value("size", {"longest_edge": 1024})
    if isinstance(value, dict) and set(value) == {"longest_edge"}:
        value = {"height": value["longest_edge"], "width": value["longest_edge"]}
    read = Config({"size": value}, "preprocessor_config.json")
    size = pixels.read_size(read, "size", 1024, is_square=True)
    if size.shortest:
        raise described.error("size", '{"longest_edge"} or {"height", "width"}')
    return size.width, size.height
