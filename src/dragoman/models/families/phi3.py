"""Phi-3 and Phi-4: Llama with fused projections, turning a part of each head."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts
from dragoman.models.families.llama import head_size
from dragoman.models.families.mistral import Mistral
from dragoman.models.rotary import RotaryReading, read_rotary
from dragoman.models.weights import Weights, halves


class Phi3(Mistral):
    """Phi-3 mini, small context and 128k; Phi-3.5 mini; Phi-4 and Phi-4 mini."""

    architectures = ("Phi3ForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)

    def __init__(self, config: Config) -> None:
        config.expect(attention_bias=False, mlp_bias=False, lm_head_bias=False, full_attn_mod=1, interpolate_factor=1)
        config.skip("original_max_position_embeddings")  # of longrope; read there if that is the rule
        super().__init__(config)

    def read_rotary(self, config: Config) -> RotaryReading:
        """Of the part of a head that is turned."""
        return read_rotary(config, head_size(config), part=1.0)

    def projections(self, weights: Weights, facts: AttentionFacts) -> tuple[Weights, Weights, Weights]:
        """The parts of one matrix."""
        key_start, value_start = facts.query_width, facts.query_width + facts.key_width
        end = value_start + facts.value_width
        fused = weights.at("qkv_proj")
        starts = ((0, key_start), (key_start, value_start), (value_start, end))
        q, k, v = (fused.rows(slice(*part), end) for part in starts)
        return q, k, v

    def gate_up_down(self, weights: Weights, inner_size: int) -> tuple[Weights, Weights, Weights]:
        """Gate and up as halves of one matrix."""
        return *halves(weights.at("gate_up_proj"), inner_size), weights.at("down_proj")
