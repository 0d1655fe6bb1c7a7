"""The common part of families with experts: the keys of config.json, and the tensors.

Does: the parts that most of them share. Does not: route or evaluate (`blocks.experts` does). Each family says what differs.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from dragoman.models.blocks.experts import ExpertWeights, Routing, gated_experts, route
from dragoman.models.blocks.mlp import ACTIVATIONS, gated_mlp
from dragoman.models.blocks.nodes import add
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config, ModelError
from dragoman.models.facts import ExpertFacts, MlpFacts
from dragoman.models.families.llama import Llama
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights, halves


class WithExperts(Llama):
    """Llama with experts in its layers, or in most of them.

    `router_name`, `expert_names`, `shared_name`: where a layer keeps the router, each expert's gate, up and down matrices,
    and the expert that every token takes.
    """

    router_name: ClassVar[str] = "gate"
    expert_names: ClassVar[tuple[str, str, str]] = ("gate_proj", "up_proj", "down_proj")
    shared_name: ClassVar[str] = "shared_experts"

    def __init__(self, config: Config) -> None:
        config.skip("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")  # of training
        super().__init__(config)

    @abstractmethod
    def expert_facts(self, config: Config, index: int) -> ExpertFacts | None:
        """Those of a layer; None if it has a dense MLP."""

    def mlp_facts(self, config: Config, index: int) -> MlpFacts | ExpertFacts:
        """See `Llama`."""
        facts = self.expert_facts(config, index)
        config.skip("intermediate_size")  # which checkpoints have even if every layer has experts
        if facts is None:
            return super().mlp_facts(config, index)
        check_groups(facts)
        return facts

    def mlp(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """The experts, and the one that every token takes."""
        facts = self.facts.layers[layer.index].mlp
        if isinstance(facts, MlpFacts):
            return super().mlp(x, weights, layer)
        routing = self.route(x, weights, facts)
        routed = gated_experts(x, routing, self.expert_weights(weights, facts), facts)
        return add(routed, self.shared(x, weights, facts)) if facts.shared_size else routed

    def route(self, x: Node, weights: Weights, facts: ExpertFacts) -> Routing:
        """The choice."""
        return route(x, weights.at(self.router_name), facts)

    def expert_weights(self, weights: Weights, facts: ExpertFacts) -> list[ExpertWeights]:
        """Those of each expert, which may lie in two tensors for all."""
        if "gate_up_proj" in weights.at("experts"):
            return stacked_experts(weights.at("experts"), facts)
        experts = (weights.at(f"experts.{index}") for index in range(facts.num_experts))
        return [ExpertWeights(*(expert.at(name) for name in self.expert_names)) for expert in experts]

    def shared(self, x: Node, weights: Weights, facts: ExpertFacts) -> Node:
        """The output for x of the expert that every token takes."""
        matrices = self.gate_up_down(weights.at(self.shared_name), facts.shared_size)
        return gated_mlp(x, *matrices, facts.shared_size, facts.activation, bias=self.has_mlp_bias)


class ChosenWithBias(WithExperts):
    """Experts that are chosen with a bias, which keeps them equally busy. `bias_name`: where a layer's MLP keeps it."""

    bias_name: ClassVar[str] = "gate.e_score_correction_bias"

    def route(self, x: Node, weights: Weights, facts: ExpertFacts) -> Routing:
        """With the bias."""
        bias = weights.vector(facts.num_experts, self.bias_name)
        return route(x, weights.at(self.router_name), facts, choice_bias=bias)


def stacked_experts(experts: Weights, facts: ExpertFacts) -> list[ExpertWeights]:
    """Those of each expert where all lie in two tensors: gates above ups, and downs."""
    raised, lowered = experts.renamed(weight="gate_up_proj"), experts.renamed(weight="down_proj")
    return [
        ExpertWeights(
            *halves(raised.stacked(index, facts.num_experts), facts.inner_size),
            lowered.stacked(index, facts.num_experts),
        )
        for index in range(facts.num_experts)
    ]


def check_groups(facts: ExpertFacts) -> None:
    """Raises: ModelError if the rule's groups do not fit the experts."""
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
    """The number of experts that a token goes through. Raises: ModelError if that is more than there are."""
    count = config.count(key)
    if count > num_experts:
        raise config.error(key, f"at most the number of experts, {num_experts}")
    return count


def activation(config: Config) -> str:
    """The name of what stands between an expert's products."""
    return config.choice("hidden_act", ACTIVATIONS, "silu")
