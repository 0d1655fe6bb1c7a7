"""The part of a layer that looks at each token alone: dense MLPs and their activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from openvino import opset13 as ops

from dragoman.kernels import graph as kernels
from dragoman.models.blocks.linear import have_one_order, in_order, linear, linears
from dragoman.models.blocks.nodes import multiply, scalar, width
from dragoman.models.storage.constants import Node
from dragoman.models.storage.packing import packed, packed_order
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
"""Activations by the names that checkpoints have for them; several names are one function."""


OURS = {
    "silu": "silu", "swish": "silu", "relu": "relu", "relu2": "relu2", "gelu": "gelu", "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu",
}  # fmt: skip
"""Their names in native/on_matrices.hpp."""


class Gating(NamedTuple):
    """The function between the products of a gated MLP: of gate and up. `kernel`: its name in native/on_matrices.hpp."""

    between: Callable[[Node, Node], Node]
    kernel: str


def gating(activation: str) -> Gating:
    return Gating(lambda gate, up: multiply(ACTIVATIONS[activation](gate), up), OURS[activation])


def gated_mlp(
    x: Node, gate: Weights, up: Weights, down: Weights, inner_size: int, activation: str | Gating, *, bias: bool = False
) -> Node:
    """down(activation(gate x) * up x). Source: arXiv:2002.05202."""
    gate_by = gating(activation) if isinstance(activation, str) else activation
    if (whole := _whole_mlp(x, gate, up, down, inner_size, gate_by, bias=bias)) is not None:
        return whole
    fused = gate.storage.format.fuses_mlp
    gated, raised = linears(x, [gate, up], [inner_size, inner_size], bias=bias, is_fused=fused)
    return linear(gate_by.between(gated, raised), down, width(x), bias=bias)


def _whole_mlp(
    x: Node, gate: Weights, up: Weights, down: Weights, inner_size: int, gate_by: Gating, *, bias: bool
) -> Node | None:
    """One operation of our kernels; None if they cannot, or a watcher or adapter needs the parts."""
    storage, hidden = gate.storage, width(x)
    if not storage.format.is_ours or gate.adapting or storage.watcher:
        return None
    parts = ((gate, inner_size, hidden), (up, inner_size, hidden), (down, hidden, inner_size))
    matrices = [weights.matrix(rows, columns) for weights, rows, columns in parts]
    if not have_one_order(matrices[:2]) or packed_order(matrices[2]) is not None:
        return None
    nodes = [
        packed(matrix, weights.storage, weights.vector(rows, "bias") if bias else None)
        for matrix, (weights, rows, _) in zip(matrices, parts, strict=True)
    ]
    return kernels.gated_mlp(in_order(x, packed_order(matrices[0])), nodes[0], nodes[1], nodes[2], gate_by.kernel)


def plain_mlp(x: Node, up: Weights, down: Weights, inner_size: int, activation: str, *, bias: bool = True) -> Node:
    """down(activation(up x))."""
    return linear(ACTIVATIONS[activation](linear(x, up, inner_size, bias=bias)), down, width(x), bias=bias)
