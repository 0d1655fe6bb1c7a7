"""GLM-4 in its two forms: Llama that turns the first half of a head in pairs side by side, with a fused MLP."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.llama import LayerNorms, Llama


class Glm(Llama):
    """GLM-4 9B chat, GLM-Edge."""

    architectures = ("GlmForCausalLM",)
    epsilon = ("rms_norm_eps", 1.5625e-07)
    has_interleaved_pairs = True
    rotary_part = 0.5
    mlp_names = ("gate_up_proj", "down_proj")

    def attention_biases(self, config: Config) -> tuple[bool, bool]:
        return config.flag("attention_bias"), False


class Glm4(Glm):
    """GLM-4 of April 2025 and GLM-Z1: also norms the outputs of attention and MLP."""

    architectures = ("Glm4ForCausalLM",)
    layer_norms = LayerNorms(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")
