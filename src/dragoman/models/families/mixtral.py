"""Mixtral: Mistral with experts in every layer."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts, RoutingRule
from dragoman.models.families.experts import WithExperts, activation, active_count
from dragoman.models.families.mistral import Mistral


class Mixtral(WithExperts, Mistral):
    """Mixtral 8x7B, 8x22B."""

    architectures = ("MixtralForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    mlp_name = "block_sparse_moe"
    expert_names = ("w1", "w3", "w2")

    def expert_facts(self, config: Config, index: int) -> ExpertFacts:
        """See `WithExperts`."""
        num_experts = config.count("num_local_experts", 8)
        return ExpertFacts(
            num_experts,
            active_count(config, "num_experts_per_tok", num_experts),
            config.count("intermediate_size"),
            activation(config),
            RoutingRule(is_normalized=True),
        )
