"""GLM 4.5 to 4.7: Llama that turns the first half of a head, with DeepSeek V3's experts; and what is built like it."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.deepseek import BiasedExperts, LatentAttention


class GlmExperts(BiasedExperts):
    """GLM 4.5, 4.5-Air, 4.6."""

    architectures = ("Glm4MoeForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    rotary_part = 0.5

    def __init__(self, config: Config) -> None:
        self.head_norms = "each" if config.flag("use_qk_norm") else ""
        super().__init__(config)

    def attention_biases(self, config: Config) -> tuple[bool, bool]:
        return config.flag("attention_bias"), False


class GlmLite(LatentAttention, BiasedExperts):
    """GLM 4.7 Flash: DeepSeek V3 with other numbers."""

    architectures = ("Glm4MoeLiteForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)

    def __init__(self, config: Config) -> None:
        config.expect(partial_rotary_factor=1.0)
        config.assume(first_k_dense_replace=1)
        super().__init__(config)


class SolarOpen(GlmExperts):
    """Solar Open 100B: GLM 4.5 with rotary positions of whole heads, and experts in every layer."""

    architectures = ("SolarOpenForCausalLM",)

    def __init__(self, config: Config) -> None:
        config.expect(first_k_dense_replace=0, use_qk_norm=False)
        config.assume(partial_rotary_factor=1.0)
        super().__init__(config)
