"""Mistral: Llama whose layers may all see a window; Mixtral, with experts in every layer; and Ministral 3 and Mistral 4.

MiniMax M2 and StarCoder2 are built like them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, ExpertFacts, QueryGrowth, RoutingRule
from dragoman.models.families.deepseek import LatentAttention, RoutedExperts
from dragoman.models.families.experts import ChosenWithBias, WithExperts, grouped_rule, read_experts
from dragoman.models.families.llama import Bias, Llama, head_size, read_slides
from dragoman.models.rotary import RotaryReading, read_rotary, rotary_description


class Mistral(Llama):
    """Mistral 7B, NeMo, Small."""

    qkv_bias: ClassVar[Bias] = False
    output_bias: ClassVar[Bias] = False

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        return read_slides(config, lambda _index: "sliding_window" in config)


class Mixtral(WithExperts, Mistral):
    """Mixtral 8x7B, 8x22B."""

    epsilon = ("rms_norm_eps", 1e-5)
    mlp_name = "block_sparse_moe"
    mlp_names = ("w1", "w3", "w2")

    def expert_facts(self, config: Config, index: int) -> ExpertFacts:
        rule = RoutingRule(is_normalized=True)
        return read_experts(config, rule, "num_local_experts", "intermediate_size", default=8)


# Mixtral that norms queries and keys as a whole, turns a part of each head and chooses experts with a bias.
class MiniMaxM2(ChosenWithBias, Mixtral):
    """MiniMax M2, M2.1 and M2.5. Layers that guess further tokens are ignored."""

    epsilon = ("rms_norm_eps", 1e-6)
    head_norms = "all"
    bias_name = "e_score_correction_bias"

    def __init__(self, config: Config) -> None:
        config.expect(qk_norm_type="per_layer", scoring_func="sigmoid", use_qk_norm=True, use_routing_bias=True)
        config.expect(attn_type_list=[1] * config.count("num_hidden_layers"), shared_intermediate_size=0)
        config.skip(
            "layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"
        )  # for other models of the family
        config.skip("mlp_intermediate_size", "shared_moe_mode", "mtp_transformer_layers", "num_mtp_modules", "use_mtp")
        self.unread = (*self.unread, r"\.mtp\b")
        super().__init__(config)

    def read_rotary(self, config: Config) -> RotaryReading:
        size = head_size(config)
        config.assume(rope_theta=5_000_000.0)
        return read_rotary(config, size, part=config.count("rotary_dim", size) / size)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts:
        return replace(super().expert_facts(config, index), routing=RoutingRule("sigmoid", is_normalized=True))


class GrowingQueries(Llama):
    """Llama whose queries grow by what the description of the rotary rule says."""

    growth: QueryGrowth | None = None

    def read_growing_rotary(self, config: Config, size: int, part: float | None = None) -> RotaryReading:
        """The rotary rule; sets `self.growth` from the same description."""
        described = rotary_description(config)
        described.skip("max_position_embeddings")  # config.json repeats it
        weight = described.number("llama_4_scaling_beta", 0.0)
        if weight:
            self.growth = QueryGrowth(described.count("original_max_position_embeddings"), weight)
        return read_rotary(config, size, scaling=described, part=part)

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        return replace(super().attention_facts(config, index), growth=self.growth)


class Ministral3(GrowingQueries, Mistral):
    """Ministral 3 3B, 8B and 14B."""

    epsilon = ("rms_norm_eps", 1e-5)

    def read_rotary(self, config: Config) -> RotaryReading:
        return self.read_growing_rotary(config, head_size(config))


# DeepSeek's latent attention and experts.
class Mistral4(GrowingQueries, LatentAttention, RoutedExperts):
    """Mistral Small 4."""

    def read_rotary(self, config: Config) -> RotaryReading:
        turned, size = self.latent.turned_size, self.latent.head_size
        reading = self.read_growing_rotary(config, size, turned / size)
        if reading.rule.size != turned:
            raise rotary_description(config).error("partial_rotary_factor", f"{turned / size}, as in qk_rope_head_dim")
        return reading

    def routing_rule(self, config: Config) -> RoutingRule:
        return grouped_rule(config)


# Mistral with LayerNorm, biases everywhere and a plain MLP.
class Starcoder2(Mistral):
    """StarCoder2 3B, 7B, 15B."""

    epsilon = ("norm_epsilon", 1e-5)
    has_layer_norms = True
    mlp_names = ("c_fc", "c_proj")
    qkv_bias = output_bias = mlp_bias = ("use_bias", True)
    has_gate = False
    is_tied = True

    def __init__(self, config: Config) -> None:
        config.expect(mlp_type="default", norm_type="layer_norm")
        super().__init__(config)
