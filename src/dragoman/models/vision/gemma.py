"""Gemma 3: SigLIP's patches pooled to a fixed number, without crops (pan and scan). Source: arXiv:2503.19786.

Gemma 4: a tower for any shape that rotates heads by column and row. Source: the Gemma 4 release.
"""

from __future__ import annotations

import math
from math import isqrt

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import (
    add,
    columns,
    concat,
    gather_rows,
    integers,
    multiply,
    parameter,
    reshape,
    scalar,
    scaled,
)
from dragoman.models.blocks.norms import rms_norm, rms_normalized
from dragoman.models.blocks.rotary import Angles, apply_rotary, rotary_angles
from dragoman.models.config import Config
from dragoman.models.facts import PictureFacts, RotaryRule
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node, constant
from dragoman.models.vision import pixels
from dragoman.models.vision.base import PictureLayout, PictureProcessor, TowerGraph, VisionFamily
from dragoman.models.vision.blocks import (
    SIGLIP,
    dense_tensor,
    end_of_part,
    found_at,
    full_attention,
    patch_vectors,
    projector_weights,
    read_transformer,
    tower_weights,
)
from dragoman.models.vision.llava import PIXELS, WholePictures
from dragoman.models.vision.qwen_vl import PATCHES, Cut, axial_base, vision_part
from dragoman.models.weights import Weights
from dragoman.types import Detail, Picture

_PROJECTION = "mm_input_projection_weight"


class Gemma3(VisionFamily):
    def __init__(self, config: Config, hidden_size: int) -> None:
        described = config.part("vision_config") or Config({}, "config.json vision_config")
        self.transformer = read_transformer(described, SIGLIP, {})
        config.rename({"image_token_id": "image_token_index"})
        self.facts = PictureFacts(config.count("image_token_index", 262144, least=0), is_bidirectional=True)
        self.hidden_size = hidden_size
        self.num_embeddings = config.count("mm_tokens_per_image", 256)
        self.rows = isqrt(self.num_embeddings)  # and columns
        self.pool = self.transformer.side // self.rows  # patches of each side of what becomes one embedding
        if self.rows**2 != self.num_embeddings or not self.pool or self.transformer.side // self.pool != self.rows:
            patches = f"{self.transformer.side} x {self.transformer.side}"
            raise config.error("mm_tokens_per_image", f"a square number of which {patches} patches can be pooled")

    def processor(self, described: Config) -> PictureProcessor:
        pixels.read_kind(described, ("Gemma3",))
        size = self.transformer.image_size
        steps = pixels.read_steps(described, 224, crops=False, numbers=(pixels.HALVES, pixels.HALVES))
        if steps.shape != (size, size):
            raise described.error("size", f"a size that makes every picture {size} x {size} pixels, as the tower needs")
        described.expect(do_pad=False, do_pan_and_scan=False, image_seq_length=self.num_embeddings)
        described.skip(*(f"pan_and_scan_{key}" for key in ("max_num_crops", "min_crop_size", "min_ratio_to_activate")))
        begin, placeholder, end = (
            pixels.read_text(described, key, default)
            for key, default in (
                ("boi_token", "<start_of_image>"),
                ("image_token", "<image_soft_token>"),
                ("eoi_token", "<end_of_image>"),
            )
        )
        pixels.refuse_unread(described)
        text = f"\n\n{begin}{placeholder * self.num_embeddings}{end}\n\n"
        return WholePictures(begin, PictureLayout(text, self.num_embeddings), steps)

    def tower(self, weights: Weights) -> TowerGraph:
        size = self.transformer.image_size
        tiles = parameter(PIXELS, -1, 3, size, size)
        states = tower_weights(weights)
        last = self.transformer.num_layers
        x = self.transformer.states(tiles.output(0), states, [last])[last]
        pooled = self._pooled(self.transformer.last_norm(x, states))
        projector = projector_weights(weights, _PROJECTION)
        normed = rms_norm(pooled, projector.at("mm_soft_emb_norm"), self.transformer.layer.epsilon, offset=1.0)
        return TowerGraph(linear(normed, projector.renamed(weight=_PROJECTION).transposed(), self.hidden_size), [tiles])

    def _pooled(self, x: Node) -> Node:
        """Means of squares of patches. Shapes: [N, patches, hidden] -> [N * embeddings, hidden]."""
        rows, pool, side, hidden = self.rows, self.pool, self.transformer.side, self.transformer.hidden_size
        square = reshape(x, -1, side, side, hidden)
        whole = ops.slice(square, integers(0, 0), integers(rows * pool, rows * pool), integers(1, 1), integers(1, 2))
        cut = reshape(whole.output(0), -1, rows, pool, rows, pool, hidden)
        return reshape(ops.reduce_mean(cut, integers(2, 4), False).output(0), -1, hidden)


_COLUMNS, _ROWS, _SQUARES = "columns", "rows", "squares"
_COUNTS = (70, 140, 280, 560, 1120)  # embeddings that a picture may have at most, as the reference allows

# transformers' defaults, which a vision_config may leave out.
_ASSUMED = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "pooling_kernel_size": 3,
    "patch_size": 16,
    "position_embedding_size": 10_240,
}


class Gemma4(VisionFamily):
    prefixes = (r"(model\.)?vision_tower\.", r"(model\.)?embed_vision\.")

    def __init__(self, config: Config, hidden_size: int) -> None:
        self.hidden_size = hidden_size
        text = config.part("text_config")
        sees_later = text is not None and text.value("use_bidirectional_attention") == "vision"
        # placeholders see each other within windows: the same for pictures that are no longer than these
        self.longest = text.count("sliding_window", 512) if text is not None and sees_later else None
        placeholder_id = config.count("image_token_id", 258_880, least=0)
        pad_id = 0 if text is None else text.count("pad_token_id", 0, least=0)
        num_rows = 262_144 if text is None else text.count("vocab_size_per_layer_input", 262_144)
        if text is not None and pad_id >= num_rows:
            raise text.error("pad_token_id", f"below vocab_size_per_layer_input, {num_rows}")
        self.facts = PictureFacts(placeholder_id, is_bidirectional=sees_later, only_in_windows=True, pad_id=pad_id)
        vision = vision_part(config)
        vision.assume(model_type="gemma4_vision", **_ASSUMED)
        vision.choice("model_type", ("gemma4_vision",))
        self.num_heads, self.head_size = vision.count("num_attention_heads"), vision.count("head_dim")
        if self.head_size % 4:
            raise vision.error("head_dim", "a multiple of 4, half for rows and half for columns")
        vision.expect(num_key_value_heads=self.num_heads, attention_bias=False)
        self.size, self.inner_size = vision.count("hidden_size"), vision.count("intermediate_size")
        self.num_layers, self.epsilon = vision.count("num_hidden_layers"), vision.positive("rms_norm_eps")
        self.activation = vision.choice("hidden_activation", ACTIVATIONS)
        self.cut = Cut(vision.count("patch_size"), 1, vision.count("pooling_kernel_size"))
        self.num_places = vision.count("position_embedding_size")
        self.is_clipped, self.is_standardized = vision.flag("use_clipped_linears"), vision.flag("standardize")
        vision.skip("default_output_length", "global_head_dim", "max_position_embeddings")  # without effect
        theta = axial_base(vision, 100.0)
        half = self.head_size // 2
        self.rule = RotaryRule(tuple(theta ** (-2 * i / half) for i in range(half // 2)))
        vision.refuse_unread()

    def processor(self, described: Config) -> Gemma4Pictures:
        return Gemma4Pictures(described, self.cut, self.num_places, self.longest)

    def tower(self, weights: Weights) -> TowerGraph:
        patches = parameter(PATCHES, -1, self.cut.width)
        across, down, squares = (parameter(name, -1, dtype=ov.Type.i64) for name in (_COLUMNS, _ROWS, _SQUARES))
        known = "patch_embedder.input_proj.weight", "embedding_projection.weight"
        body, projection = (
            found_at(weights, (f"model.{name}", name), *known) for name in ("vision_tower", "embed_vision")
        )
        embedder = body.at("patch_embedder")
        table = dense_tensor(embedder, (2, self.num_places, self.size), "position_embedding_table").astype(np.float32)
        kernel = (self.size, self.cut.width)
        centered = add(scaled(patches.output(0), 2.0), scalar(-1.0))
        x = patch_vectors(centered, embedder.at("input_proj"), kernel, bias=False)
        positions = across.output(0), down.output(0)
        for part, places in zip(table, positions, strict=True):
            x = add(x, gather_rows(constant(np.ascontiguousarray(part)), places))
        angles = [rotary_angles(places, None, self.rule) for places in positions]
        for index in range(self.num_layers):
            x = self._layer(x, body.at(f"encoder.layers.{index}"), angles)
        pooled = reshape(gather_rows(x, squares.output(0)), -1, self.cut.merge**2, self.size)
        x = scaled(ops.reduce_mean(pooled, integers(1), False).output(0), self.size**0.5)
        if self.is_standardized:
            shift, factor = (body.vector(self.size, name).reshape(1, -1) for name in ("std_bias", "std_scale"))
            x = multiply(add(x, constant(-shift)), constant(factor))
        normed = rms_normalized(x, np.ones(self.size, np.float32), self.epsilon)
        rows = linear(normed, projection.at("embedding_projection"), self.hidden_size)
        return TowerGraph(rows, [patches, across, down, squares])

    def _layer(self, x: Node, weights: Weights, angles: list[Angles]) -> Node:
        attended = self._attention(rms_norm(x, weights.at("input_layernorm"), self.epsilon), weights, angles)
        x = end_of_part(add(x, rms_norm(attended, weights.at("post_attention_layernorm"), self.epsilon)))
        normed, mlp = rms_norm(x, weights.at("pre_feedforward_layernorm"), self.epsilon), weights.at("mlp")
        gate, up = (self._linear(normed, mlp.at(f"{name}_proj"), self.inner_size) for name in ("gate", "up"))
        lowered = self._linear(multiply(ACTIVATIONS[self.activation](gate), up), mlp.at("down_proj"), self.size)
        return end_of_part(add(x, rms_norm(lowered, weights.at("post_feedforward_layernorm"), self.epsilon)))

    def _attention(self, x: Node, weights: Weights, angles: list[Angles]) -> Node:
        part, size = weights.at("self_attn"), self.head_size
        heads = [
            reshape(self._linear(x, part.at(f"{name}_proj"), self.num_heads * size), -1, self.num_heads, 1, size)
            for name in "qkv"
        ]
        # the divisor of scores is in the queries' norm
        norms = [part.at("q_norm").vector(size) * np.float32(size**0.5), part.at("k_norm").vector(size)]
        q, k, v = (
            rms_normalized(head, norm, self.epsilon)
            for head, norm in zip(heads, [*norms, np.ones(size, np.float32)], strict=True)
        )
        q, k = (_turned(head, angles) for head in (q, k))
        q, k, v = (reshape(head, 1, -1, self.num_heads * size) for head in (q, k, v))
        attended = reshape(full_attention(q, k, v, self.num_heads), -1, self.num_heads * size)
        return self._linear(attended, part.at("o_proj"), self.size)

    def _linear(self, x: Node, weights: Weights, num_rows: int) -> Node:
        product = weights.at("linear")
        if not self.is_clipped:
            return linear(x, product, num_rows)
        return _clipped(linear(_clipped(x, weights, "input"), product, num_rows), weights, "output")


def _turned(x: Node, angles: list[Angles]) -> Node:
    """Rotated by the column in the first half, by the row in the second. Shape: [patches, heads, 1, size]."""
    half = int(x.get_partial_shape()[3].get_length()) // 2
    across, down = angles
    return concat([apply_rotary(columns(x, 0, half), across), apply_rotary(columns(x, half, 2 * half), down)])


def _clipped(x: Node, weights: Weights, name: str) -> Node:
    least, most = (float(dense_tensor(weights, (), f"{name}_{end}")) for end in ("min", "max"))
    return ops.clamp(x, max(least, -3e38), min(most, 3e38)).output(0)


class Gemma4Pictures:
    """Detail "low": at most 70 embeddings. Shapes: pixel_values f32 [patches, numbers of a patch], row by row."""

    def __init__(self, described: Config, cut: Cut, num_places: int, longest: int | None) -> None:
        """`num_places`: most patches of a row or a column; `longest`: embeddings of a picture, None = any number."""
        pixels.read_kind(described, ("Gemma4",))
        described.assume(patch_size=16, pooling_kernel_size=3)
        described.expect(do_resize=True, patch_size=cut.patch, pooling_kernel_size=cut.merge)
        described.skip("audio_ms_per_token", "audio_seq_length", "size", "default_to_square")
        self._cut, self._most = cut, described.count("max_soft_tokens", 280)
        if self._most not in _COUNTS:
            raise described.error("max_soft_tokens", f"one of {', '.join(map(str, _COUNTS))}")
        if self._most * cut.merge > num_places:
            raise described.error("max_soft_tokens", f"at most {num_places // cut.merge}, as config.json has places")
        if longest is not None and self._most > longest:
            raise described.error("max_soft_tokens", f"at most sliding_window of config.json, {longest}")
        self._resample = pixels.read_resample(described)
        described.assume(do_normalize=False)
        self._values = pixels.read_values(described, (0.0,) * 3, (1.0,) * 3)
        self.marker = pixels.read_text(described, "image_token", "<|image|>")
        self._begin = pixels.read_text(described, "boi_token", "<|image>")
        self._end = pixels.read_text(described, "eoi_token", "<image|>")
        pixels.refuse_unread(described)

    def layout(self, width: int, height: int, detail: Detail) -> PictureLayout:
        sides = self._size(width, height, detail)
        count = sides[0] * sides[1] // self._cut.side**2
        return PictureLayout(f"{self._begin}{self.marker * count}{self._end}", count)

    def inputs(self, picture: Picture, detail: Detail) -> dict[str, Array]:
        size = self._size(picture.width, picture.height, detail)
        image, patch = pixels.as_image(picture).resize(size, self._resample), self._cut.patch
        wide, high = (length // patch for length in size)
        rows, across = np.indices((high, wide)).reshape(2, -1)
        return {
            PATCHES: pixels.flat_patches(image, self._values, patch),
            _COLUMNS: across.astype(np.int64),
            _ROWS: rows.astype(np.int64),
            _SQUARES: self._cut.in_squares(np.arange(high * wide).reshape(high, wide)).astype(np.int64),
        }

    def _size(self, width: int, height: int, detail: Detail) -> tuple[int, int]:
        most, side = min(self._most, _COUNTS[0]) if detail == "low" else self._most, self._cut.side
        scale = math.sqrt(most * side**2 / (height * width))
        wide, high = math.floor(scale * width / side), math.floor(scale * height / side)
        if not high:
            wide, high = min(width // height, most), 1
        elif not wide:
            wide, high = 1, min(height // width, most)
        return wide * side, high * side
