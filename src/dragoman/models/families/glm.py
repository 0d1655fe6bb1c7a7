"""GLM-4 in its two forms: Llama that rotates the first half of a head in pairs side by side, with a fused MLP.

GLM 4.5 to 4.7 have DeepSeek V3's experts; and what is built like them.
"""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.deepseek import BiasedExperts, LatentAttention
from dragoman.models.families.llama import LayerNorms, Llama


class Glm(Llama):
    """GLM-4 9B chat, GLM-Edge."""

    epsilon = ("rms_norm_eps", 1.5625e-07)
    has_interleaved_pairs = True
    rotary_part = 0.5
    mlp_names = ("gate_up_proj", "down_proj")
    output_bias = False


class Glm4(Glm):
    """GLM-4 of April 2025 and GLM-Z1: also norms the outputs of attention and MLP."""

    layer_norms = LayerNorms(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")


class GlmExperts(BiasedExperts):
    """GLM 4.5, 4.5-Air, 4.6."""

    epsilon = ("rms_norm_eps", 1e-5)
    rotary_part = 0.5
    output_bias = False

    def __init__(self, config: Config) -> None:
        self.head_norms = "each" if config.flag("use_qk_norm") else ""
        super().__init__(config)


class GlmLite(LatentAttention, BiasedExperts):
    """GLM 4.7 Flash: DeepSeek V3 with other numbers."""

    epsilon = ("rms_norm_eps", 1e-5)

    def __init__(self, config: Config) -> None:
        config.expect(partial_rotary_factor=1.0)
        config.assume(first_k_dense_replace=1)
        super().__init__(config)


class SolarOpen(GlmExperts):
    """Solar Open 100B: GLM 4.5 with rotary positions of whole heads, and experts in every layer."""

    def __init__(self, config: Config) -> None:
        config.expect(first_k_dense_replace=0, use_qk_norm=False)
        config.assume(partial_rotary_factor=1.0)
        super().__init__(config)
