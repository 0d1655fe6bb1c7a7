"""The part of a layer that looks at each token alone.

Does: dense MLPs and their activations. Does not: route to experts (`experts` does).
"""

from __future__ import annotations

from collections.abc import Callable

from openvino import opset13 as ops

from dragoman.models.blocks.linear import linear, linears
from dragoman.models.blocks.nodes import multiply, scalar, width
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

ACTIVATIONS: dict[str, Callable[[Node], Node]] = {
    "silu": lambda x: ops.swish(x).output(0),
    "swish": lambda x: ops.swish(x).output(0),
    "relu": lambda x: ops.relu(x).output(0),
    "relu2": lambda x: multiply(ops.relu(x).output(0), ops.relu(x).output(0)),
    "gelu": lambda x: ops.gelu(x, "erf").output(0),
    "gelu_new": lambda x: ops.gelu(x, "tanh").output(0),
    "gelu_fast": lambda x: ops.gelu(x, "tanh").output(0),
    "gelu_pytorch_tanh": lambda x: ops.gelu(x, "tanh").output(0),
    "quick_gelu": lambda x: ops.swish(x, scalar(1.702)).output(0),
}
"""By the names that checkpoints have for them. `gelu_new` and its kin are one function, written in several ways."""


def gated_mlp(
    x: Node, gate: Weights, up: Weights, down: Weights, inner_size: int, activation: str, *, bias: bool = False
) -> Node:
    """down(activation(gate x) * up x). Source: arXiv:2002.05202."""
    fused = gate.storage.format.fuses_mlp
    gated, raised = linears(x, [gate, up], [inner_size, inner_size], bias=bias, is_fused=fused)
    return linear(multiply(ACTIVATIONS[activation](gated), raised), down, width(x), bias=bias)


def plain_mlp(x: Node, up: Weights, down: Weights, inner_size: int, activation: str, *, bias: bool = True) -> Node:
    """down(activation(up x))."""
    return linear(ACTIVATIONS[activation](linear(x, up, inner_size, bias=bias)), down, width(x), bias=bias)
