"""The towers of Qwen2-VL and Qwen2.5-VL. Sources: arXiv:2409.12191; arXiv:2502.13923."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import openvino as ov

from dragoman.models.blocks.mlp import gated_mlp, plain_mlp
from dragoman.models.blocks.nodes import add, concat
from dragoman.models.blocks.norms import layer_norm, rms_norm
from dragoman.models.blocks.rotary import Angles
from dragoman.models.config import Config
from dragoman.models.facts import PictureFacts
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node
from dragoman.models.vision.base import PictureProcessor, TowerGraph, VisionFamily
from dragoman.models.vision.blocks import patch_vectors, tower_input
from dragoman.models.vision.parts import end_of_part
from dragoman.models.vision.qwen_blocks import (
    NORM_EPSILON,
    TowerFacts,
    Windows,
    attention,
    check_output,
    merged,
    patch_angles,
    read_tower,
    tower_body,
    vision_part,
    window_tables,
)
from dragoman.models.vision.qwen_pictures import PATCHES, POSITIONS, QwenPictures
from dragoman.models.weights import Weights


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
        patches = tower_input(PATCHES, -1, facts.cut.width)
        positions = tower_input(POSITIONS, 2, -1, dtype=ov.Type.i64)
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
