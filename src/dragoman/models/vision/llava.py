"""LLaVA 1.5, each picture at one size; `llava_tiles` has pictures in tiles. Source: arXiv:2310.03744."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from openvino import opset13 as ops

from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import concat, integers, reshape
from dragoman.models.config import Config
from dragoman.models.facts import PictureFacts
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node
from dragoman.models.vision import pixels
from dragoman.models.vision.base import PictureLayout, PictureProcessor, TowerGraph, VisionFamily
from dragoman.models.vision.blocks import tower_input
from dragoman.models.vision.transformer import (
    CLIP,
    VisionTransformer,
    projected,
    projector_weights,
    read_transformer,
    tower_weights,
)
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
        return tower_input(PIXELS, -1, 3, size, size)

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
