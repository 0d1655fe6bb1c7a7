"""LFM2 with experts behind the first layers. Source: Liquid AI's LFM2-8B-A1B release."""

from __future__ import annotations

from dragoman.models.blocks.experts import Routing, route
from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts, MlpFacts, RoutingRule
from dragoman.models.families.experts import WithExperts, active_count
from dragoman.models.families.lfm2 import Lfm2
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Lfm2Experts(Lfm2, WithExperts):
    """LFM2 8B-A1B, 24B-A2B."""

    architectures = ("Lfm2MoeForCausalLM",)

    def __init__(self, config: Config) -> None:
        self.has_choice_bias = config.flag("use_expert_bias", True)
        config.assume(tie_embedding=config.flag("tie_word_embeddings", True))
        super().__init__(config)

    def mlp_facts(self, config: Config, index: int) -> MlpFacts | ExpertFacts:
        return WithExperts.mlp_facts(self, config, index)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts | None:
        num_experts, inner_size = config.count("num_experts"), config.count("moe_intermediate_size")
        active = active_count(config, "num_experts_per_tok", num_experts)
        is_normalized = config.flag("norm_topk_prob", True)
        scale = config.number("routed_scaling_factor", 1.0)
        if index < config.count("num_dense_layers", 2, least=0):
            return None
        routing = RoutingRule("sigmoid", is_normalized, scale=scale)
        return ExpertFacts(num_experts, active, inner_size, "silu", routing)

    def route(self, x: Node, weights: Weights, facts: ExpertFacts) -> Routing:
        bias = weights.vector(facts.num_experts, "expert_bias") if self.has_choice_bias else None
        return route(x, weights.at(self.router_name), facts, choice_bias=bias)
