"""Embeddings for each layer: a small vector of each token for every layer, which the layer adds at its end.

Source: the Gemma 3n release.
"""

from __future__ import annotations

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.embeddings import embedding
from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import add, columns, multiply, reshape, scalar, scaled, width
from dragoman.models.blocks.norms import rms_norm
from dragoman.models.blocks.step import LayerInputs, StepInputs
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

TABLE = "embed_tokens_per_layer"

_NAME = "per_layer"


def hand_on_per_layer(x: Node, body: Weights, step: StepInputs, num_rows: int, size: int, epsilon: float) -> None:
    """Make the vectors of all layers, of the table's rows and of the embeddings. Shapes: x [T, 1, hidden].

    Tokens beyond the table's `num_rows` have the vectors of its first row, placeholders those of `PictureFacts.pad_id`.
    """
    num_layers = len(step.facts.layers)
    token_ids, pictures = step.token_ids, step.facts.pictures
    if pictures is not None and pictures.pad_id is not None:
        is_placeholder = ops.equal(token_ids, scalar(pictures.placeholder_id, np.int64))
        token_ids = ops.select(is_placeholder, scalar(pictures.pad_id, np.int64), token_ids).output(0)
    if num_rows < step.facts.vocab_size:
        is_in_table = ops.less(token_ids, scalar(num_rows, np.int64))
        token_ids = ops.select(is_in_table, token_ids, scalar(0, np.int64)).output(0)
    rows = embedding(token_ids, body.at(TABLE), num_rows, num_layers * size, is_large=True)
    projected = scaled(linear(x, body.at("per_layer_model_projection"), num_layers * size), width(x) ** -0.5)
    normed = rms_norm(reshape(projected, -1, num_layers, size), body.at("per_layer_projection_norm"), epsilon)
    both = add(reshape(normed, -1, 1, num_layers * size), scaled(rows, size**0.5))
    step.handed_on[_NAME] = (scaled(both, 2**-0.5),)


def let_in_per_layer(x: Node, weights: Weights, layer: LayerInputs, size: int, activation: str, epsilon: float) -> Node:
    """The change by the layer's vectors, gated by x. Shapes: x [R, 1, hidden] -> the same."""
    (every,) = layer.step.handed_on[_NAME]
    vectors = layer.keep(columns(every, layer.index * size, (layer.index + 1) * size))
    gated = multiply(ACTIVATIONS[activation](linear(x, weights.at("per_layer_input_gate"), size)), vectors)
    projected = linear(gated, weights.at("per_layer_projection"), width(x))
    return rms_norm(projected, weights.at("post_per_layer_input_norm"), epsilon)
