"""The common part of families with experts: the keys of config.json, and the tensors. `blocks.mlp` evaluates."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

from dragoman.models.blocks.mlp import ACTIVATIONS, ExpertWeights, Routing, evaluate_experts, gated_mlp, route
from dragoman.models.blocks.nodes import add
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config, ModelError
from dragoman.models.facts import ExpertFacts, MlpFacts, RoutingRule
from dragoman.models.families.llama import Llama
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights, halves


class WithExperts(Llama):
    """Llama with experts in its layers. `router_name`, `shared_name`: of the router, and of the expert for all tokens.

    `are_turned`: two tensors for all experts are stored by columns.
    """

    router_name: ClassVar[str] = "gate"
    are_turned: ClassVar[bool] = False
    shared_name: ClassVar[str] = "shared_experts"

    def __init__(self, config: Config) -> None:
        config.skip("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")  # only for training
        super().__init__(config)

    @abstractmethod
    def expert_facts(self, config: Config, index: int) -> ExpertFacts | None:
        """None = the layer has a dense MLP."""

    def mlp_facts(self, config: Config, index: int) -> MlpFacts | ExpertFacts:
        facts = self.expert_facts(config, index)
        config.skip("intermediate_size")  # checkpoints have it even if every layer has experts
        if facts is None:
            return super().mlp_facts(config, index)
        check_groups(facts)
        return facts

    def mlp(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        facts = self.facts.layers[layer.index].mlp
        if isinstance(facts, MlpFacts):
            return super().mlp(x, weights, layer)
        routing = self.route(x, weights, facts)
        routed = evaluate_experts(x, routing, self.expert_weights(weights, facts), facts)
        return add(routed, self.shared(x, weights, facts)) if facts.shared_size else routed

    def route(self, x: Node, weights: Weights, facts: ExpertFacts) -> Routing:
        return route(x, weights.at(self.router_name), facts)

    def expert_weights(self, weights: Weights, facts: ExpertFacts) -> list[ExpertWeights]:
        stored = weights.at("experts")
        are_apart = f"0.{self.mlp_names[0]}.weight" in stored
        if "gate_up_proj" in stored or (self.are_turned and not are_apart):
            stored = stored.transposed() if self.are_turned else stored
            return stacked_experts(stored.renamed(weight="gate_up_proj"), stored.renamed(weight="down_proj"), facts)
        experts = (stored.at(str(index)) for index in range(facts.num_experts))
        return [ExpertWeights(*self.gate_up_down(expert, facts.inner_size)) for expert in experts]

    def shared(self, x: Node, weights: Weights, facts: ExpertFacts) -> Node:
        matrices = self.gate_up_down(weights.at(self.shared_name), facts.shared_size)
        return gated_mlp(x, *matrices, facts.shared_size, facts.activation, bias=self.has_mlp_bias)


class ChosenWithBias(WithExperts):
    """Experts that are chosen with a bias, which keeps them equally busy. `bias_name`: where a layer's MLP keeps it."""

    bias_name: ClassVar[str] = "gate.e_score_correction_bias"

    def route(self, x: Node, weights: Weights, facts: ExpertFacts) -> Routing:
        bias = weights.vector(facts.num_experts, self.bias_name)
        return route(x, weights.at(self.router_name), facts, choice_bias=bias)


def stacked_experts(raised: Weights, lowered: Weights, facts: ExpertFacts) -> list[ExpertWeights]:
    count, size = facts.num_experts, facts.inner_size
    pairs = ((raised.stacked(index, count), lowered.stacked(index, count)) for index in range(count))
    return [ExpertWeights(*halves(both, size), down) for both, down in pairs]


def read_experts(
    config: Config,
    rule: RoutingRule,
    count: str = "num_experts",
    size: str = "moe_intermediate_size",
    active: str = "num_experts_per_tok",
    *,
    default: int | None = None,
    shared_size: int = 0,
) -> ExpertFacts:
    """A layer's experts. `count`, `size`, `active`: keys of number, width and number per token. Raises: ModelError."""
    num_experts = config.count(count, default)
    num_active, inner_size = active_count(config, active, num_experts), config.count(size)
    activation = config.choice("hidden_act", ACTIVATIONS, "silu")
    return ExpertFacts(num_experts, num_active, inner_size, activation, rule, shared_size)


def grouped_rule(config: Config, score: Literal["softmax", "sigmoid"] = "softmax") -> RoutingRule:
    """The best experts of the groups that have the best pairs of them. Raises: ModelError."""
    num_groups = config.count("n_group", 1)
    return RoutingRule(
        score=score,
        is_normalized=config.flag("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 1.0),
        num_groups=num_groups,
        num_active_groups=config.count("topk_group", num_groups),
        group_best=2,
    )


def check_groups(facts: ExpertFacts) -> None:
    rule, num_experts = facts.routing, facts.num_experts
    size, rest = divmod(num_experts, rule.num_groups)
    if rest or size < rule.group_best:
        raise ModelError(
            f"config.json n_group is {rule.num_groups}, allowed: what divides the {num_experts} experts into groups of at "
            f"least {rule.group_best}"
        )
    least = -(-facts.num_active // size)
    if not least <= rule.num_active_groups <= rule.num_groups:
        raise ModelError(
            f"config.json topk_group is {rule.num_active_groups}, allowed: {least} to n_group, {rule.num_groups}"
        )


def active_count(config: Config, key: str, num_experts: int) -> int:
    count = config.count(key)
    if count > num_experts:
        raise config.error(key, f"at most the number of experts, {num_experts}")
    return count
