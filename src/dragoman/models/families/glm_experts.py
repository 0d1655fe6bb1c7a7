"""GLM 4.5 and 4.6: Llama that turns the first half of a head, with DeepSeek V3's experts."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts
from dragoman.models.families.deepseek import BiasedExperts
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
