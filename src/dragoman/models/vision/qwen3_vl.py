"""The towers of Qwen3-VL and, without further levels, Qwen 3.5. Source: its release; DeepStack, arXiv:2406.04334."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import openvino as ov

from dragoman.models.blocks.nodes import add, reshape
from dragoman.models.config import Config
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node, embedding_table
from dragoman.models.vision.blocks import dense_tensor, tower_input
from dragoman.models.vision.qwen2_vl import QwenTower, layer_indexes
from dragoman.models.vision.qwen_blocks import (
    TowerFacts,
    check_output,
    merged,
    read_tower,
    weighted_rows,
)
from dragoman.models.weights import Weights

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
        return [tower_input(CORNERS, 4, -1, dtype=ov.Type.i64), tower_input(SHARES, 4, -1)]

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
