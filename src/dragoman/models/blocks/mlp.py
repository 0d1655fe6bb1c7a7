"""The part of a layer that looks at each token alone: dense MLPs, and experts, of which each token goes through a few.

One operation of our kernels evaluates experts, or rows are sorted by expert, for products of their own.
Sources: Mixture of Experts (arXiv:1701.06538); groups and biased choice, DeepSeek-V2 and V3 (arXiv:2405.04434,
2412.19437).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from openvino import opset13 as ops

from dragoman.kernels import graph as kernels
from dragoman.models.blocks.linear import have_one_order, in_order, linear, linears
from dragoman.models.blocks.nodes import add, gather_rows, integers, multiply, reshape, scalar, scaled, unsqueeze, width
from dragoman.models.facts import ExpertFacts, RoutingRule
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node, constant
from dragoman.models.storage.packing import common_order, packed, packed_order, packed_stack
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


Expert = Callable[[Node, int], Node]
"""A function of an expert's rows. Shapes: [n, 1, hidden] -> the same."""


class ExpertWeights(NamedTuple):
    gate: Weights
    up: Weights
    down: Weights


class PlainExpertWeights(NamedTuple):
    up: Weights
    down: Weights


class Routing(NamedTuple):
    """The experts that tokens go through, and the share of each. Shapes: i64 and f32 [T, active]."""

    chosen: Node
    shares: Node


# --- the choice -------------------------------------------------------------------------------------------------------


def route(
    x: Node, router: Weights, facts: ExpertFacts, *, bias: bool = False, choice_bias: Array | None = None
) -> Routing:
    """The experts of each token. `choice_bias`: added to scores for choosing, not for counting.

    Shapes: x [T, 1, hidden], router [experts, hidden], choice_bias f32 [experts].
    """
    rule, num_experts = facts.routing, facts.num_experts
    logits = router_logits(x, router, num_experts, bias=bias)
    if rule.score == "chosen":
        highest = _highest(logits, facts.num_active)
        return Routing(highest.chosen, ops.softmax(highest.shares, 1).output(0))
    scores = ops.softmax(logits, 1).output(0) if rule.score == "softmax" else ops.sigmoid(logits).output(0)
    ranked = scores if choice_bias is None else add(scores, constant(choice_bias))
    if rule.num_active_groups < rule.num_groups:
        ranked = _within_groups(ranked, rule, num_experts)
    chosen, shares = _highest(ranked, facts.num_active)
    if ranked is not scores:
        shares = ops.gather_elements(scores, chosen, 1).output(0)
    return Routing(chosen, _weighed(shares, rule))


def router_logits(x: Node, router: Weights, num_experts: int, *, bias: bool = False) -> Node:
    """A number for every expert, of weights that are not compressed. Shapes: x [T, 1, hidden] -> [T, experts]."""
    matrix = np.asarray(router.matrix(num_experts, width(x))).astype(np.float32)
    logits = ops.matmul(reshape(x, -1, width(x)), constant(matrix), transpose_a=False, transpose_b=True).output(0)
    return add(logits, constant(router.vector(num_experts, "bias"))) if bias else logits


def _highest(values: Node, count: int) -> Routing:
    node = ops.topk(values, scalar(count, np.int64), 1, "max", "value", index_element_type="i64")
    return Routing(node.output(1), node.output(0))


def _within_groups(scores: Node, rule: RoutingRule, num_experts: int) -> Node:
    """Scores, of inactive groups -inf. Shape: [T, experts]."""
    grouped = reshape(scores, -1, rule.num_groups, num_experts // rule.num_groups)
    best = ops.topk(grouped, scalar(rule.group_best, np.int64), 2, "max", "value").output(0)
    active = _highest(ops.reduce_sum(best, integers(2), False).output(0), rule.num_active_groups).chosen
    flags = _scattered(active, ops.broadcast(scalar(1.0), _shape(active)).output(0), rule.num_groups)
    is_active = unsqueeze(ops.greater(flags, scalar(0.0)).output(0), 2)
    return reshape(ops.select(is_active, grouped, scalar(-np.inf)).output(0), -1, num_experts)


def _weighed(shares: Node, rule: RoutingRule) -> Node:
    if rule.is_normalized:
        total = ops.reduce_sum(shares, integers(1), True).output(0)
        if rule.least_sum:
            total = ops.maximum(total, scalar(rule.least_sum)).output(0)
        shares = ops.divide(shares, total).output(0)
    return scaled(shares, rule.scale)


def _shape(x: Node) -> Node:
    return ops.shape_of(x, "i64").output(0)


def _scattered(chosen: Node, values: Node, size: int) -> Node:
    """The values at each token's chosen places, else 0. Shapes: [T, active] -> [T, size]."""
    num_tokens = ops.gather(_shape(chosen), integers(0), scalar(0, np.int64)).output(0)
    shape = ops.concat([num_tokens, integers(size)], 0)
    zeros = ops.broadcast(ops.convert(scalar(0.0), values.get_element_type()), shape)
    return ops.scatter_elements_update(zeros, chosen, values, scalar(1, np.int64)).output(0)


# --- evaluation -------------------------------------------------------------------------------------------------------


def evaluate_experts(
    x: Node,
    routing: Routing,
    weights: Sequence[ExpertWeights | PlainExpertWeights],
    facts: ExpertFacts,
    activation: Gating | None = None,
    *,
    bias: bool = False,
) -> Node:
    """The sum of the chosen experts' MLPs by their shares. Shapes: x [T, 1, hidden] -> the same."""
    gate_by, storage = activation or gating(facts.activation), weights[0].up.storage
    if storage.format.is_ours and not storage.watcher:  # adapters change experts only by merging into matrices
        return _by_our_kernels(x, routing, weights, facts, gate_by.kernel, bias=bias)

    def expert(rows: Node, index: int) -> Node:
        matrices = weights[index]
        if isinstance(matrices, PlainExpertWeights):
            return plain_mlp(rows, *matrices, facts.inner_size, facts.activation, bias=bias)
        return gated_mlp(rows, *matrices, facts.inner_size, gate_by, bias=bias)

    return _apart(x, routing, facts.num_experts, expert)


def _by_our_kernels(
    x: Node,
    routing: Routing,
    weights: Sequence[ExpertWeights | PlainExpertWeights],
    facts: ExpertFacts,
    activation: str,
    *,
    bias: bool,
) -> Node:
    hidden, inner = width(x), facts.inner_size
    stacks = list(zip(*weights, strict=True))  # gates if there are any, ups, downs
    into = len(stacks) - 1  # the stacks that read x
    sizes = (*((inner, hidden),) * into, (hidden, inner))
    matrices = [[expert.matrix(*size) for expert in stack] for stack, size in zip(stacks, sizes, strict=True)]
    order = common_order([matrix for stack in matrices[:into] for matrix in stack])
    nodes = [
        packed_stack(
            of_experts,
            stack[0].storage,
            order=order_of_columns,
            bias=np.stack([expert.vector(size[0], "bias") for expert in stack]) if bias else None,
        )
        for of_experts, stack, size, order_of_columns in zip(
            matrices, stacks, sizes, (*(order,) * into, None), strict=True
        )
    ]
    rows = in_order(x, order)
    return kernels.experts(rows, routing.chosen, routing.shares, nodes, facts.num_experts, activation)


def _apart(x: Node, routing: Routing, num_experts: int, expert: Expert) -> Node:
    """The chosen experts' outputs, summed by their shares. Shapes: x [T, 1, hidden] -> the same."""
    ones = ops.broadcast(scalar(1, np.int32), _shape(routing.chosen)).output(0)
    is_taken = ops.transpose(_scattered(routing.chosen, ones, num_experts), integers(1, 0)).output(0)  # [experts, T]
    tokens = reshape(gather_rows(ops.non_zero(is_taken, "i64").output(0), scalar(1, np.int64)), -1)
    counts = ops.convert(ops.reduce_sum(is_taken, integers(1), False), "i64").output(0)
    rows = ops.variadic_split(gather_rows(x, tokens), scalar(0, np.int64), counts)
    outputs = ops.concat([expert(rows.output(index), index) for index in range(num_experts)], 0).output(0)
    ranks = ops.subtract(ops.cumsum(reshape(is_taken, -1), scalar(0, np.int64)), scalar(1, np.int32)).output(0)
    num_tokens = gather_rows(_shape(routing.chosen), scalar(0, np.int64))
    chosen_rows = gather_rows(outputs, gather_rows(ranks, _flat_places(routing.chosen, num_tokens)))
    return ops.reduce_sum(multiply(chosen_rows, unsqueeze(routing.shares, 2, 3)), integers(1), False).output(0)


def _flat_places(chosen: Node, num_tokens: Node) -> Node:
    """i64 [T, active]: the index of each chosen (expert, token) in [experts, tokens] laid flat."""
    tokens = ops.range(scalar(0, np.int64), num_tokens, scalar(1, np.int64), "i64")
    return add(multiply(chosen, num_tokens), unsqueeze(tokens.output(0), 1))
