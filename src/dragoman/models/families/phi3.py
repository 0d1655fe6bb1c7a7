"""Phi-3 and Phi-4: Llama with fused projections, turning a part of each head."""

from __future__ import annotations

from dragoman.models.blocks.attention import Projections, in_turn
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts
from dragoman.models.families.mistral import Mistral
from dragoman.models.weights import Weights


class Phi3(Mistral):
    """Phi-3 mini, small context and 128k; Phi-3.5 mini; Phi-4 and Phi-4 mini."""

    architectures = ("Phi3ForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    rotary_part = 1.0
    mlp_names = ("gate_up_proj", "down_proj")

    def __init__(self, config: Config) -> None:
        config.expect(attention_bias=False, mlp_bias=False, lm_head_bias=False, full_attn_mod=1, interpolate_factor=1)
        config.skip("original_max_position_embeddings")  # longrope reads it, if that is the rule
        super().__init__(config)

    def projections(self, weights: Weights, facts: AttentionFacts) -> Projections:
        return in_turn(weights.at("qkv_proj"), facts)
