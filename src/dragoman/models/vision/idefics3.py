"""Idefics3 and SmolVLM. Sources: arXiv:2408.12637; arXiv:2504.05299; Idefics3ImageProcessor of transformers 4.57."""

from __future__ import annotations

import math
from typing import Any

from PIL import Image

from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.nodes import parameter
from dragoman.models.config import Config
from dragoman.models.facts import PictureFacts
from dragoman.models.sources.base import Array
from dragoman.models.vision.base import PictureLayout, TowerGraph, VisionFamily
from dragoman.models.vision.blocks import SIGLIP, read_sizes
from dragoman.models.vision.pixels import (
    HALVES,
    as_image,
    read_kind,
    read_resample,
    read_text,
    read_values,
    refuse_unread,
)
from dragoman.models.vision.qwen_vl import vision_part
from dragoman.models.vision.tiles import PIXELS, cut, folded, stacked
from dragoman.models.weights import Weights
from dragoman.types import Detail, Picture

_LARGEST_SIDE = 4096

# transformers' defaults, which a vision_config may leave out.
_ASSUMED: dict[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}


class Idefics3(VisionFamily):
    prefixes = (r"model\.vision_model\.", r"model\.connector\.")

    def __init__(self, config: Config, hidden_size: int) -> None:
        self.hidden_size = hidden_size
        self.facts = PictureFacts(config.count("image_token_id", least=0))
        part = vision_part(config)
        # keys for training, which the reference's tower does not read
        part.skip("max_image_size", "size", "tie_word_embeddings", "use_base_siglip")
        self.transformer = read_sizes(part, SIGLIP, _ASSUMED)
        self.factor = config.count("scale_factor", 2)
        if self.transformer.side % self.factor:
            raise config.error("scale_factor", f"a divisor of the {self.transformer.side} patches of a tile's side")

    @property
    def num_embeddings(self) -> int:
        return (self.transformer.side // self.factor) ** 2

    def processor(self, described: Config) -> Idefics3Processor:
        return Idefics3Processor(described, self.transformer.image_size, self.num_embeddings)

    def tower(self, weights: Weights) -> TowerGraph:
        shape, last = self.transformer, self.transformer.num_layers
        pixels = parameter(PIXELS, -1, 3, shape.image_size, shape.image_size)
        body = weights.at("model.vision_model")
        x = shape.last_norm(shape.states(pixels.output(0), body, [last])[last], body)
        projection = weights.at("model.connector.modality_projection.proj")
        return TowerGraph(linear(folded(x, shape.side, self.factor), projection, self.hidden_size), [pixels])


class Idefics3Processor:
    """See `PictureProcessor`. With detail "low" a picture is not cut, as with do_image_splitting false."""

    def __init__(self, described: Config, tile_size: int, num_embeddings: int) -> None:
        read_kind(described, ("Idefics3", "SmolVLM"))
        described.expect(do_resize=True)
        self.values = read_values(described, HALVES, HALVES)
        self.resample = read_resample(described, Image.Resampling.LANCZOS)
        self.longest_edge = _longest_edge(described, "size", 4 * 364)
        self.tile_size = _longest_edge(described, "max_image_size", 364)
        if self.tile_size != tile_size:
            raise described.error("max_image_size", f'{{"longest_edge": {tile_size}}}, as image_size of config.json')
        self.is_split = described.flag("do_image_splitting", True)
        self.num_embeddings = described.count("image_seq_len", num_embeddings)
        if self.num_embeddings != num_embeddings:
            raise described.error("image_seq_len", f"{num_embeddings}, as config.json says")
        # do_pad: all tiles have the largest one's size. video_sampling: videos are refused.
        described.skip("do_pad", "video_sampling")
        self.marker = read_text(described, "image_token", "<image>")
        self.around = read_text(described, "fake_image_token", "<fake_token_around_image>")
        self.whole = read_text(described, "global_image_token", "<global-img>")
        refuse_unread(described)

    def layout(self, width: int, height: int, detail: Detail) -> PictureLayout:
        rows, columns = self._grid(width, height, detail)
        placeholders = self.marker * self.num_embeddings
        lines = [
            "".join(f"{self.around}<row_{row}_col_{column}>{placeholders}" for column in range(1, columns + 1)) + "\n"
            for row in range(1, rows + 1)
        ]
        before = "".join(lines) + ("\n" if rows else "")
        text = f"{before}{self.around}{self.whole}{placeholders}{self.around}"
        return PictureLayout(text, (rows * columns + 1) * self.num_embeddings)

    def inputs(self, picture: Picture, detail: Detail) -> dict[str, Array]:
        scaled = _scaled(picture.width, picture.height, self.longest_edge)
        image = as_image(picture).resize(scaled, self.resample)
        rows, columns = self._grid(picture.width, picture.height, detail)
        size = self.tile_size
        if rows:
            image = image.resize((columns * size, rows * size), self.resample)
        tiles = [*cut(image, rows, columns, size), image.resize((size, size), self.resample)]
        return {PIXELS: stacked(tiles, self.values)}

    def _grid(self, width: int, height: int, detail: Detail) -> tuple[int, int]:
        if not self.is_split or detail == "low":
            return 0, 0
        width, height = _scaled(width, height, self.longest_edge)
        ratio = width / height
        if width >= height:
            columns = math.ceil(width / self.tile_size)
            rows = math.ceil(int(columns * self.tile_size / ratio) / self.tile_size)
        else:
            rows = math.ceil(height / self.tile_size)
            columns = math.ceil(int(rows * self.tile_size * ratio) / self.tile_size)
        return (rows, columns) if rows * columns > 1 else (0, 0)


def _scaled(width: int, height: int, longest_edge: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height:
        width, height = longest_edge, _even(longest_edge / ratio)
    else:
        width, height = _even(longest_edge * ratio), longest_edge
    return _bounded(max(width, 1), max(height, 1))


def _bounded(width: int, height: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height and width > _LARGEST_SIDE:
        width, height = _LARGEST_SIDE, int(_LARGEST_SIDE / ratio)
    elif height > width and height > _LARGEST_SIDE:
        width, height = int(_LARGEST_SIDE * ratio), _LARGEST_SIDE
    return max(width, 1), max(height, 1)


def _even(length: float) -> int:
    whole = int(length)
    return whole + whole % 2


def _longest_edge(described: Config, key: str, default: int) -> int:
    part = described.part(key)
    if part is None:
        return default
    longest_edge = part.count("longest_edge")
    part.refuse_unread()
    return longest_edge
