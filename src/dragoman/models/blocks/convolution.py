"""Short causal convolutions over the tokens of many sequences, of which a step holds some and the tokens before are kept.

Does: the convolution in plain operations; what it looks back at as inputs, what is to be kept as an output. Does not: keep
anything (the engine's runner does), or gate (families do). Used while a graph is built.
"""

from __future__ import annotations

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.nodes import add, concat, gather_rows, multiply, split, unsqueeze
from dragoman.models.facts import ModelFacts
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node, constant

PAST_ROWS, ROWS_BEFORE, ROWS_TO_KEEP = "convolution_past", "convolution_before", "convolution_to_keep"
KEPT_ROWS = "convolution_kept"


class ConvolutionInputs:
    """What all convolutions of a step share.

    `past` f32 [P, width of all convolutions]: what was kept of tokens of earlier steps, zeros before a sequence's beginning.
    `before`, of 1, 2, ... tokens back, i64 [T]: where each token finds that row; below P among those, from P on among the
    step's own tokens. `to_keep` i64 [K]: the tokens whose rows later steps may ask for; `kept` gives them.
    """

    def __init__(self, facts: ModelFacts, past: Node, before: list[Node], to_keep: Node) -> None:
        widths = [convolution.width for convolution in facts.convolution_layers.values()]
        parts = [past] if len(widths) == 1 else split(past, widths)
        self._past = dict(zip(facts.convolution_layers, parts, strict=True))
        self._before, self._to_keep = before, to_keep
        self._kept: dict[int, Node] = {}

    def convolve(self, layer: int, x: Node, taps: Array, bias: Array | None = None) -> Node:
        """The sum of a token's and its predecessors' rows, each channel times its taps; the last tap is the token's own.

        Shapes: x [T, 1, width], taps f32 [width, length], bias f32 [width] -> [T, 1, width].
        """
        self._kept[layer] = ops.squeeze(gather_rows(x, self._to_keep), np.array([1], dtype=np.int64)).output(0)
        rows = ops.concat([unsqueeze(self._past[layer], 1), x], axis=0).output(0)
        width, length = taps.shape
        weights = [
            constant(np.ascontiguousarray(taps[:, i], dtype=np.float32).reshape(1, 1, width)) for i in range(length)
        ]
        total = multiply(x, weights[-1])
        for back in range(1, length):
            total = add(total, multiply(gather_rows(rows, self._before[back - 1]), weights[-1 - back]))
        return total if bias is None else add(total, constant(bias))

    def kept(self) -> Node:
        """The rows to keep of all convolutions beside each other, f32 [K, width of all]; once all layers are built."""
        return concat([self._kept[layer] for layer in sorted(self._kept)])
