"""Phi-3.5-vision as it is exported: its tower and its projection, graphs of their own, joined by config.json's separators.

Source: optimum-intel's export of phi3_v. `vision.hd_tiles` prepares pictures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models.blocks.nodes import gather_rows, reshape
from dragoman.models.config import Config, ModelError, read_json
from dragoman.models.facts import PictureFacts
from dragoman.models.ir.files import SeeingFiles
from dragoman.models.ir.graph import only_result, read_graph, reason
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import constant
from dragoman.models.vision.base import EMBEDDINGS, PictureProcessor
from dragoman.models.vision.blocks import tower_input
from dragoman.models.vision.hd_tiles import PLACEHOLDER, ROWS, SIDE, TILE, HdPictures
from dragoman.models.vision.tiles import PIXELS, folded

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
        pixels = tower_input(PIXELS, -1, 3, TILE, TILE)
        _feed(vision, files.vision, pixels.output(0))
        table = ops.concat([folded(patches, 2 * SIDE, _FOLD), constant(self._separators)], axis=0)
        _feed(projection, files.projection, reshape(table.output(0), 1, -1, self._width))
        rows = tower_input(ROWS, -1, dtype=ov.Type.i64)
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
