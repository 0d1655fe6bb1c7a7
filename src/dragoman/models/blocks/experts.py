"""Layers in which each token goes through a few of many MLPs: the choice, and two ways of evaluating it.

Does: routing; experts apart (each one's products over the rows of its tokens) or grouped (the plugin's operation that
gathers an expert's matrix for each row). Does not: dense MLPs (`mlp` does), or what single families do inside an expert.

Apart reads an expert's weights once for all its rows, but every expert costs some time even if it has none. Grouped reads
them for each row, and costs nothing for the others: it is faster for steps of a few tokens among very many experts.
Sources: Mixture of Experts (arXiv:1701.06538); groups and biased choice, DeepSeek-V2 and V3 (arXiv:2405.04434, 2412.19437).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from openvino import opset13 as ops
from openvino.utils.node_factory import NodeFactory

from dragoman.models.blocks.mlp import gated_mlp
from dragoman.models.blocks.nodes import add, gather_rows, integers, multiply, reshape, scalar, scaled, unsqueeze, width
from dragoman.models.facts import ExpertFacts, ModelFacts, RoutingRule
from dragoman.models.sources.base import Array, PackedMatrix, StoredTensor
from dragoman.models.storage.constants import Node, WeightFormat, WeightStorage, constant, weight_stack
from dragoman.models.weights import Weights, can_be_joined

_TOKENS = 32  # of a step for which the faster way is taken: streams that decode together, or a short piece of a prompt
_SWISH = ("silu", "swish")  # what the plugin's operation can have between the products

Expert = Callable[[Node, int], Node]
"""What an expert makes of its rows. Shapes: [n, 1, hidden] -> the same."""


class ExpertWeights(NamedTuple):
    """The matrices of one expert."""

    gate: Weights
    up: Weights
    down: Weights


class Routing(NamedTuple):
    """Which experts tokens go through, and how much each counts. Shapes: i64 and f32 [T, active]."""

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
    # Not compressed: these few weights decide which of all the others are used.
    matrix = np.asarray(router.matrix(num_experts, width(x))).astype(np.float32)
    logits = ops.matmul(reshape(x, -1, width(x)), constant(matrix), transpose_a=False, transpose_b=True).output(0)
    if bias:
        logits = add(logits, constant(router.vector(num_experts, "bias")))
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


def _highest(values: Node, count: int) -> Routing:
    node = ops.topk(values, scalar(count, np.int64), 1, "max", "value", index_element_type="i64")
    return Routing(node.output(1), node.output(0))


def _within_groups(scores: Node, rule: RoutingRule, num_experts: int) -> Node:
    """Scores with those of groups that are not active as low as can be. Shape: [T, experts]."""
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
    """For each token `size` values, at the places that are chosen these, else 0. Shapes: [T, active] -> [T, size]."""
    num_tokens = ops.gather(_shape(chosen), integers(0), scalar(0, np.int64)).output(0)
    shape = ops.concat([num_tokens, integers(size)], 0)
    zeros = ops.broadcast(ops.convert(scalar(0.0), values.get_element_type()), shape)
    return ops.scatter_elements_update(zeros, chosen, values, scalar(1, np.int64)).output(0)


# --- evaluation -------------------------------------------------------------------------------------------------------


def gated_experts(x: Node, routing: Routing, weights: Sequence[ExpertWeights], facts: ExpertFacts) -> Node:
    """The chosen experts' gated MLPs, summed as they count, in the way that is faster here.

    Shapes: x [T, 1, hidden] -> the same.
    """
    if not weights[0].gate.storage.format.is_ours and is_grouped(facts, width(x), weights[0].gate.storage.format):
        stacks = _stacks(weights, width(x), facts.inner_size)
        if all(map(_can_be_stacked, stacks)):
            return _grouped(x, routing, stacks, facts, weights[0].gate.storage)

    def expert(rows: Node, index: int) -> Node:
        return gated_mlp(rows, *weights[index], facts.inner_size, facts.activation)

    return experts_apart(x, routing, facts.num_experts, expert, weights[0].gate.storage.format)


def is_grouped(facts: ExpertFacts, hidden_size: int, stored: WeightFormat) -> bool:
    """True if the grouped operation can compute these experts, and is faster for steps of `_TOKENS` tokens."""
    part = facts.num_active / facts.num_experts
    num_used = facts.num_experts * (1 - (1 - part) ** _TOKENS)
    num_shared = _TOKENS * facts.num_active - num_used  # rows for which no weights need to be read
    expert_size = 3 * hidden_size * facts.inner_size
    return facts.activation in _SWISH and num_shared * expert_size < facts.num_experts * stored.idle_expert_weights


def holds_grouped(facts: ModelFacts, stored: WeightFormat) -> bool:
    """True if some layer's experts are grouped. The runtime can write such a graph, but not read it again."""
    experts = [layer.mlp for layer in facts.layers if isinstance(layer.mlp, ExpertFacts)]
    return any(is_grouped(expert, facts.hidden_size, stored) for expert in experts)


def experts_apart(x: Node, routing: Routing, num_experts: int, expert: Expert, stored: WeightFormat) -> Node:
    """The chosen experts' outputs, summed as they count: the rows are sorted by expert, and each expert gets its own.

    Where a row alone is computed otherwise than among others, every expert that has rows gets the first token's as well.
    Shapes: x [T, 1, hidden] -> the same.
    """
    ones = ops.broadcast(scalar(1, np.int32), _shape(routing.chosen)).output(0)
    is_taken = ops.transpose(_scattered(routing.chosen, ones, num_experts), integers(1, 0)).output(0)  # [experts, T]
    if stored.max_columns is not None:
        # A step may have no tokens here: then neither a maximum nor a first one is to be had.
        has_rows = ops.minimum(ops.reduce_sum(is_taken, integers(1), True), scalar(1, np.int32))
        is_taken = ops.concat([is_taken, has_rows], 1).output(0)  # [experts, T + 1]
        first = ops.slice(x, integers(0), integers(1), integers(1), integers(0))
        x = ops.concat([x, first], 0).output(0)
    tokens = reshape(gather_rows(ops.non_zero(is_taken, "i64").output(0), scalar(1, np.int64)), -1)
    counts = ops.convert(ops.reduce_sum(is_taken, integers(1), False), "i64").output(0)
    rows = ops.variadic_split(gather_rows(x, tokens), scalar(0, np.int64), counts)
    outputs = ops.concat([expert(rows.output(index), index) for index in range(num_experts)], 0).output(0)
    ranks = ops.subtract(ops.cumsum(reshape(is_taken, -1), scalar(0, np.int64)), scalar(1, np.int32)).output(0)
    width_of_table = ops.gather(_shape(is_taken), integers(1), scalar(0, np.int64)).output(0)
    chosen_rows = gather_rows(outputs, gather_rows(ranks, _flat_places(routing.chosen, width_of_table)))
    return ops.reduce_sum(multiply(chosen_rows, unsqueeze(routing.shares, 2, 3)), integers(1), False).output(0)


def _flat_places(chosen: Node, num_columns: Node) -> Node:
    """Where (expert, token) stands in [experts, columns] laid flat, for each chosen expert. Shapes: i64 [T, active]."""
    num_tokens = gather_rows(_shape(chosen), scalar(0, np.int64))
    tokens = ops.range(scalar(0, np.int64), num_tokens, scalar(1, np.int64), "i64")
    return add(multiply(chosen, num_columns), unsqueeze(tokens.output(0), 1))


def _stacks(weights: Sequence[ExpertWeights], hidden_size: int, inner_size: int) -> list[list[StoredTensor]]:
    """The gate, up and down matrices of all experts."""
    return [
        [expert.gate.matrix(inner_size, hidden_size) for expert in weights],
        [expert.up.matrix(inner_size, hidden_size) for expert in weights],
        [expert.down.matrix(hidden_size, inner_size) for expert in weights],
    ]


def _can_be_stacked(matrices: Sequence[StoredTensor]) -> bool:
    """Packed ones only if all are stored alike, with their columns in order."""
    in_order = all(not isinstance(matrix, PackedMatrix) or matrix.column_order is None for matrix in matrices)
    return in_order and can_be_joined(matrices)


def _grouped(
    x: Node, routing: Routing, stacks: Sequence[Sequence[StoredTensor]], facts: ExpertFacts, storage: WeightStorage
) -> Node:
    """The form that the plugin recognises and turns into its own operation: as if each expert computed all tokens."""
    num_experts, hidden_size = facts.num_experts, width(x)

    def product(rows: Node, stacked: Node) -> Node:
        return ops.matmul(rows, stacked, transpose_a=False, transpose_b=True).output(0)

    gate, up, down = (weight_stack(stack, storage) for stack in stacks)
    copies = reshape(
        ops.tile(reshape(x, -1, hidden_size), integers(num_experts, 1)).output(0), num_experts, -1, hidden_size
    )
    # Not ops.swish: it adds a factor, with which the form is not recognised.
    gated = NodeFactory("opset4").create("Swish", [product(copies, gate)], {}).output(0)
    # Of rank 4: as a reshape to the same rank it would be dropped, and the form with it.
    outputs = reshape(product(multiply(gated, product(copies, up)), down), num_experts, 1, -1, hidden_size)
    shares = ops.transpose(_scattered(routing.chosen, routing.shares, num_experts), integers(1, 0)).output(0)
    weighed = multiply(outputs, unsqueeze(reshape(shares, num_experts, 1, -1), 3))
    return reshape(ops.reduce_sum(weighed, integers(0), False).output(0), -1, 1, hidden_size)
