"""OLMoE: Llama with experts, that norms queries and keys as a whole."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts, RoutingRule
from dragoman.models.families.experts import WithExperts, activation, active_count
from dragoman.models.families.head_norms import NormsWhole


class OlmoExperts(WithExperts, NormsWhole):
    """OLMoE 1B-7B."""

    architectures = ("OlmoeForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)

    def __init__(self, config: Config) -> None:
        config.expect(clip_qkv=None)
        super().__init__(config)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts:
        """See `WithExperts`."""
        num_experts = config.count("num_experts")
        return ExpertFacts(
            num_experts,
            active_count(config, "num_experts_per_tok", num_experts),
            config.count("intermediate_size"),
            activation(config),
            RoutingRule(is_normalized=config.flag("norm_topk_prob")),
        )
