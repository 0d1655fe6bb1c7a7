"""GLM 4.5 to 4.7: Llama that turns the first half of a head, with DeepSeek V3's experts; and what is built like it."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts
from dragoman.models.families.deepseek import BiasedExperts, LatentAttention
from dragoman.models.families.llama import head_size
from dragoman.models.rotary import RotaryReading, read_rotary
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class GlmExperts(BiasedExperts):
    """GLM 4.5, 4.5-Air, 4.6."""

    architectures = ("Glm4MoeForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)

    def __init__(self, config: Config) -> None:
        self.norms_heads = config.flag("use_qk_norm")
        super().__init__(config)

    def attention_biases(self, config: Config) -> tuple[bool, bool]:
        """Of queries, keys and values alone."""
        return config.flag("attention_bias"), False

    def read_rotary(self, config: Config) -> RotaryReading:
        """Of the first half of a head."""
        return read_rotary(config, head_size(config), part=0.5)

    def heads(self, q: Node, k: Node, weights: Weights, facts: AttentionFacts) -> tuple[Node, Node]:
        """Each head's query and key normed, if config.json says so."""
        q, k = super().heads(q, k, weights, facts)
        if not self.norms_heads:
            return q, k
        return self.norm(q, weights.at("q_norm")), self.norm(k, weights.at("k_norm"))


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
