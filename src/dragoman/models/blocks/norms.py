"""Normalisation over the last axis: of hidden states, or of each head, in the forms that the plugin fuses."""

from __future__ import annotations

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.nodes import add, integers, marked, multiply, scalar, width
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node, constant
from dragoman.models.weights import Weights

NORM = "dragoman norm"  # marks what `rms_normalized` makes


def rms_norm(x: Node, weights: Weights, epsilon: float, *, offset: float = 0.0) -> Node:
    """Root-mean-square normalisation (arXiv:1910.07467) times `offset` + weight."""
    result = rms_normalized(x, weights.vector(width(x)) + np.float32(offset), epsilon)
    if weights.storage.watcher is not None:
        weights.storage.watcher.norm(weights, result, offset=offset, bias=False)
    return result


def rms_normalized(x: Node, weight: Array, epsilon: float) -> Node:
    """The same with a weight f32 [size of the last axis]."""
    square_mean = ops.reduce_mean(ops.power(x, scalar(2.0)), integers(-1), True)
    inverse = ops.divide(scalar(1.0), ops.sqrt(ops.add(square_mean, scalar(epsilon))))
    normed = multiply(ops.multiply(x, inverse), constant(_shaped(weight, x)))
    return marked(normed, NORM, repr(float(np.float32(epsilon))))


def layer_norm(x: Node, weights: Weights | None, epsilon: float, *, bias: bool = True, offset: float = 0.0) -> Node:
    """Mean and variance normalisation (arXiv:1607.06450) times `offset` + weight, plus bias; `weights` None = of neither."""
    normalized = ops.mvn(x, integers(-1), True, epsilon, "inside_sqrt").output(0)
    if weights is None:
        return normalized
    size = width(x)
    result = multiply(normalized, constant(_shaped(weights.vector(size) + np.float32(offset), x)))
    result = add(result, constant(_shaped(weights.vector(size, "bias"), x))) if bias else result
    if weights.storage.watcher is not None:
        weights.storage.watcher.norm(weights, result, offset=offset, bias=bias)
    return result


def head_layer_norm(x: Node, weight: Array, epsilon: float) -> Node:
    """Mean and variance normalisation of each head. Shapes: x [T, heads, 1, size], weight [heads, size]."""
    heads, size = weight.shape
    # over the axis of size 1 too: of four axes the kernel takes the last one only with the one before it
    normalized = ops.mvn(x, integers(-2, -1), True, epsilon, "inside_sqrt").output(0)
    return multiply(normalized, constant(np.ascontiguousarray(weight, dtype=np.float32).reshape(1, heads, 1, size)))


def _shaped(values: Array, x: Node) -> Array:
    return values.reshape((1,) * (len(x.get_partial_shape()) - 1) + (-1,))
