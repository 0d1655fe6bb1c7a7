"""GLM-4 in its two forms: Llama that turns the first half of a head in pairs side by side, with a fused MLP."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.llama import LayerNorms, Llama, head_size
from dragoman.models.rotary import RotaryReading, read_rotary
from dragoman.models.weights import Weights, halves


class Glm(Llama):
    """GLM-4 9B chat, GLM-Edge."""

    architectures = ("GlmForCausalLM",)
    epsilon = ("rms_norm_eps", 1.5625e-07)

    def attention_biases(self, config: Config) -> tuple[bool, bool]:
        """Of queries, keys and values alone."""
        return config.flag("attention_bias"), False

    def read_rotary(self, config: Config) -> RotaryReading:
        """Of pairs side by side in a part of the head."""
        return read_rotary(config, head_size(config), is_interleaved=True, part=0.5)

    def gate_up_down(self, weights: Weights, inner_size: int) -> tuple[Weights, Weights, Weights]:
        """Gate and up as halves of one matrix."""
        return *halves(weights.at("gate_up_proj"), inner_size), weights.at("down_proj")


class Glm4(Glm):
    """GLM-4 of April 2025 and GLM-Z1: also norms the outputs of attention and MLP."""

    architectures = ("Glm4ForCausalLM",)
    layer_norms = LayerNorms(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")
