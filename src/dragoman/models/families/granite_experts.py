"""Granite 3 with experts, which lie above each other in one tensor for what goes in and one for what comes out."""

from __future__ import annotations

from dataclasses import replace

from dragoman.models.blocks.experts import ExpertWeights
from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts, RoutingRule
from dragoman.models.families.experts import WithExperts, read_experts, stacked_experts
from dragoman.models.families.granite import Granite
from dragoman.models.weights import Weights


class GraniteExperts(WithExperts, Granite):
    """Granite 3 1B-A400M, 3B-A800M; PowerMoE."""

    architectures = ("GraniteMoeForCausalLM",)
    mlp_name = ""
    router_name = "block_sparse_moe.router.layer"

    def __init__(self, config: Config) -> None:
        config.expect(position_embedding_type="rope")
        super().__init__(config)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts:
        return read_experts(config, RoutingRule(score="chosen"), "num_local_experts", "intermediate_size")

    def expert_weights(self, weights: Weights, facts: ExpertFacts) -> list[ExpertWeights]:
        experts = weights.at("block_sparse_moe")
        return stacked_experts(experts.at("input_linear"), experts.at("output_linear"), facts)


class GraniteSharedExperts(GraniteExperts):
    """Granite 3 MoE with an expert that every token uses."""

    architectures = ("GraniteMoeSharedForCausalLM",)
    shared_name = "shared_mlp"
    mlp_names = ("input_linear", "output_linear")

    def expert_facts(self, config: Config, index: int) -> ExpertFacts:
        shared_size = config.count("shared_intermediate_size", 0, least=0)
        return replace(super().expert_facts(config, index), shared_size=shared_size)
