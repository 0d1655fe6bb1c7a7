"""Phi-3.5-vision as it is exported: its tower and its projection, graphs joined by config.json's separators; its pictures.

Sources: optimum-intel's export of phi3_v; arXiv:2404.06512 ("HD transform"); arXiv:2404.14219, section 7.1. Pictures are
prepared on any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from PIL import Image

from dragoman.models.blocks.nodes import gather_rows, parameter, reshape
from dragoman.models.config import Config, ModelError, read_json
from dragoman.models.facts import PictureFacts
from dragoman.models.ir.files import SeeingFiles
from dragoman.models.ir.graph import only_result, read_graph, reason
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import constant
from dragoman.models.vision import pixels
from dragoman.models.vision.base import EMBEDDINGS, PictureLayout, PictureProcessor
from dragoman.models.vision.tiles import PIXELS, folded
from dragoman.types import Detail, Picture

_FOLD = 2  # patches along one side of an embedding


class Phi3Vision:
    def __init__(self, model_dir: Path, hidden_size: int) -> None:
        config = Config(read_json(model_dir / "config.json"))
        layout, tower = config.part("embd_layer"), config.part("img_processor")
        if layout is None or tower is None:
            raise ModelError(
                "config.json has no embd_layer or no img_processor, allowed: objects that describe the picture encoder"
            )
        layout.expect(
            embedding_cls="image", hd_transform_order="sub_glb", use_hd_transform=True, with_learnable_separator=True
        )
        tower.expect(name="clip_vision_model", num_img_tokens=SIDE**2, type_feature="patch")
        self._width = tower.count("image_dim_out") * _FOLD**2
        self._separators = np.stack([_numbers(config, key, self._width) for key in ("sub_GN", "glb_GN")])
        self._hidden_size = hidden_size
        self.facts = PictureFacts(_placeholder_id(model_dir), splits_texts=True)

    def processor(self, described: Config) -> PictureProcessor:
        return HdPictures(described)

    def tower(self, files: SeeingFiles) -> ov.Model:
        """From tiles and `ROWS` to `EMBEDDINGS`; each row of the table is projected once. Raises: ModelError."""
        vision, projection = read_graph(files.vision), read_graph(files.projection)
        try:
            tower = self._joined(vision, projection, files)
            tower.validate_nodes_and_infer_types()
        except RuntimeError as error:
            raise ModelError(f"{files.vision} and {files.projection} do not fit: {reason(error)}") from error
        return tower

    def _joined(self, vision: Any, projection: Any, files: SeeingFiles) -> ov.Model:
        patches = only_result(vision, str(files.vision), (2 * SIDE) ** 2, self._width // _FOLD**2)
        projected = only_result(projection, str(files.projection), self._hidden_size)
        pixels = parameter(PIXELS, -1, 3, TILE, TILE)
        _feed(vision, files.vision, pixels.output(0))
        table = ops.concat([folded(patches, 2 * SIDE, _FOLD), constant(self._separators)], axis=0)
        _feed(projection, files.projection, reshape(table.output(0), 1, -1, self._width))
        rows = parameter(ROWS, -1, dtype=ov.Type.i64)
        laid = gather_rows(reshape(projected, -1, self._hidden_size), rows.output(0))
        laid.set_names({EMBEDDINGS})
        return ov.Model([laid], [pixels, rows], "tower")


def _numbers(config: Config, key: str, size: int) -> Array:
    value: Any = config.value(key)
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return np.array(Config({key: value}).numbers(key, size), dtype=np.float32)


def _placeholder_id(model_dir: Path) -> int:
    tokens = read_json(model_dir / "tokenizer.json").get("added_tokens")
    for token in tokens if isinstance(tokens, list) else ():
        if isinstance(token, dict) and token.get("content") == PLACEHOLDER:
            return Config(token, "tokenizer.json added_tokens").count("id", least=0)
    raise ModelError(f"tokenizer.json has no added token {PLACEHOLDER}, which stands for an embedding of a picture")


def _feed(graph: Any, path: Path, value: Any) -> None:
    inputs = graph.get_parameters()
    if len(inputs) != 1 or inputs[0].get_element_type() != ov.Type.f32:
        raise ModelError(f"{path} has {len(inputs)} inputs, allowed: one, of f32")
    for target in inputs[0].output(0).get_target_inputs():
        target.replace_source_output(value)


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
