"""Mistral: Llama whose layers may all see a window; and Mixtral, with experts in every layer."""

from __future__ import annotations

from typing import ClassVar

from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts, RoutingRule
from dragoman.models.families.experts import WithExperts, read_experts
from dragoman.models.families.llama import Bias, Llama
from dragoman.models.families.windows import read_slides


class Mistral(Llama):
    """Mistral 7B, NeMo, Small."""

    architectures = ("MistralForCausalLM",)
    qkv_bias: ClassVar[Bias] = False
    output_bias: ClassVar[Bias] = False

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        return read_slides(config, lambda _index: "sliding_window" in config)


class Mixtral(WithExperts, Mistral):
    """Mixtral 8x7B, 8x22B."""

    architectures = ("MixtralForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    mlp_name = "block_sparse_moe"
    mlp_names = ("w1", "w3", "w2")

    def expert_facts(self, config: Config, index: int) -> ExpertFacts:
        rule = RoutingRule(is_normalized=True)
        return read_experts(config, rule, "num_local_experts", "intermediate_size", default=8)
