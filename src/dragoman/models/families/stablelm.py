"""StableLM: Llama with LayerNorm that turns a part of each head; some norm heads, or run attention and MLP in parallel."""

from __future__ import annotations

import numpy as np

from dragoman.models.blocks.norms import head_layer_norm, layer_norm
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts
from dragoman.models.families.llama import Llama, head_size
from dragoman.models.rotary import RotaryReading, read_rotary
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class StableLm(Llama):
    """StableLM 3B, 2 1.6B, 2 12B, Stable Code."""

    architectures = ("StableLmForCausalLM",)
    epsilon = ("layer_norm_eps", 1e-5)

    def __init__(self, config: Config) -> None:
        self.is_parallel = config.flag("use_parallel_residual")
        self.norms_heads = config.flag("qk_layernorm")
        super().__init__(config)

    def attention_biases(self, config: Config) -> tuple[bool, bool]:
        """Of queries, keys and values alone."""
        return config.flag("use_qkv_bias"), False

    def read_rotary(self, config: Config) -> RotaryReading:
        """Of a part of the head."""
        return read_rotary(config, head_size(config), part=0.25)

    def norm(self, x: Node, weights: Weights) -> Node:
        """LayerNorm."""
        return layer_norm(x, weights, self.norm_epsilon)

    def heads(self, q: Node, k: Node, weights: Weights, facts: AttentionFacts) -> tuple[Node, Node]:
        """Normed if the model does, each head with weights of its own."""
        q, k = super().heads(q, k, weights, facts)
        if not self.norms_heads:
            return q, k
        return (
            self._head_norm(q, weights.at("q_layernorm.norms"), facts.num_heads, facts),
            self._head_norm(k, weights.at("k_layernorm.norms"), facts.num_kv_heads, facts),
        )

    def _head_norm(self, x: Node, weights: Weights, num_heads: int, facts: AttentionFacts) -> Node:
        weight = np.stack([weights.at(str(head)).vector(facts.head_size) for head in range(num_heads)])
        return head_layer_norm(x, weight, self.norm_epsilon)
