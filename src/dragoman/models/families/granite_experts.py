"""Granite 3 with experts, which lie above each other in one tensor for what goes in and one for what comes out."""

from __future__ import annotations

from dataclasses import replace

from dragoman.models.blocks.experts import ExpertWeights
from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts, RoutingRule
from dragoman.models.families.experts import WithExperts, activation, active_count
from dragoman.models.families.granite import Granite
from dragoman.models.weights import Weights, halves


class GraniteExperts(WithExperts, Granite):
    """Granite 3 1B-A400M, 3B-A800M; PowerMoE."""

    architectures = ("GraniteMoeForCausalLM",)
    mlp_name = ""
    router_name = "block_sparse_moe.router.layer"

    def __init__(self, config: Config) -> None:
        config.expect(position_embedding_type="rope")
        super().__init__(config)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts:
        """See `WithExperts`."""
        num_experts = config.count("num_local_experts")
        return ExpertFacts(
            num_experts,
            active_count(config, "num_experts_per_tok", num_experts),
            config.count("intermediate_size"),
            activation(config),
            RoutingRule(score="chosen"),
        )

    def expert_weights(self, weights: Weights, facts: ExpertFacts) -> list[ExpertWeights]:
        """Gate and up as halves of one matrix."""
        experts = weights.at("block_sparse_moe")
        raised = (experts.at("input_linear").stacked(index, facts.num_experts) for index in range(facts.num_experts))
        lowered = (experts.at("output_linear").stacked(index, facts.num_experts) for index in range(facts.num_experts))
        return [ExpertWeights(*halves(up, facts.inner_size), down) for up, down in zip(raised, lowered, strict=True)]


class GraniteSharedExperts(GraniteExperts):
    """Granite 3 MoE with an expert that every token uses."""

    architectures = ("GraniteMoeSharedForCausalLM",)
    shared_name = "shared_mlp"

    def expert_facts(self, config: Config, index: int) -> ExpertFacts:
        """See `WithExperts`."""
        shared_size = config.count("shared_intermediate_size", 0, least=0)
        return replace(super().expert_facts(config, index), shared_size=shared_size)

    def gate_up_down(self, weights: Weights, inner_size: int) -> tuple[Weights, Weights, Weights]:
        """Of the shared expert: gate and up as halves of one matrix."""
        return *halves(weights.at("input_linear"), inner_size), weights.at("output_linear")
