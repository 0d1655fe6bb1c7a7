"""OLMoE: Llama with experts, that norms queries and keys as a whole."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts, RoutingRule
from dragoman.models.families.experts import WithExperts, read_experts


class OlmoExperts(WithExperts):
    """OLMoE 1B-7B."""

    architectures = ("OlmoeForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    head_norms = "all"

    def __init__(self, config: Config) -> None:
        config.expect(clip_qkv=None)
        super().__init__(config)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts:
        rule = RoutingRule(is_normalized=config.flag("norm_topk_prob"))
        return read_experts(config, rule, size="intermediate_size")
