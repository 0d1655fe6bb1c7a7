"""Cohere's Command R and R7B: attention and MLP in parallel after one LayerNorm without bias, scaled logits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dragoman.models.blocks.nodes import scaled
from dragoman.models.blocks.norms import head_layer_norm, layer_norm
from dragoman.models.blocks.rotary import pair_order
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts
from dragoman.models.families.llama import LayerNorms, Llama, head_size
from dragoman.models.families.windows import all_but_every, read_slides
from dragoman.models.rotary import RotaryReading, read_rotary
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Cohere(Llama):
    """Command R, R+ and Aya."""

    architectures = ("CohereForCausalLM",)
    epsilon = ("layer_norm_eps", 1e-5)
    layer_norms = LayerNorms(before_mlp="")
    is_parallel = True
    is_tied = True

    def __init__(self, config: Config) -> None:
        self.logits_scale = config.number("logit_scale", 0.0625)
        self.norms_heads = config.flag("use_qk_norm")
        config.skip("model_max_length")
        super().__init__(config)

    def read_rotary(self, config: Config) -> RotaryReading:
        """Of pairs side by side."""
        return read_rotary(config, head_size(config), is_interleaved=True)

    def norm(self, x: Node, weights: Weights) -> Node:
        """LayerNorm without bias."""
        return layer_norm(x, weights, self.norm_epsilon, bias=False)

    def heads(self, q: Node, k: Node, weights: Weights, facts: AttentionFacts) -> tuple[Node, Node]:
        """Normed if the model does, each head with weights of its own."""
        q, k = super().heads(q, k, weights, facts)
        if not self.norms_heads:
            return q, k
        return (
            self._head_norm(q, weights.at("q_norm"), facts.num_heads, facts),
            self._head_norm(k, weights.at("k_norm"), facts.num_kv_heads, facts),
        )

    def _head_norm(self, x: Node, weights: Weights, num_heads: int, facts: AttentionFacts) -> Node:
        weight = np.asarray(weights.tensor((num_heads, facts.head_size)))
        order = pair_order(1, facts.head_size, facts.head_size)  # that of the dimensions of x
        return head_layer_norm(x, weight[:, order], self.norm_epsilon)

    def head(self, x: Node, weights: Weights) -> Node:
        """Scaled, before the matrix makes it wide."""
        return super().head(scaled(x, self.logits_scale), weights)


class Cohere2(Cohere):
    """Command R7B and A: three of four layers have a window and rotary positions, the others neither."""

    architectures = ("Cohere2ForCausalLM",)

    def __init__(self, config: Config) -> None:
        config.expect(
            position_embedding_type="rope_gptj",
            order_of_interleaved_layers="local_attn_first",
            rotary_pct=1.0,
            use_embedding_sharing=True,
            use_gated_activation=True,
            use_parallel_block=True,
        )
        config.skip("layer_switch", "use_parallel_embedding")
        super().__init__(config)

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        """Every fourth layer sees everything, or as the pattern says."""
        return read_slides(config, all_but_every(config.count("sliding_window_pattern", 4)))

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        """Without a rotary rule where the layer sees everything."""
        facts = super().attention_facts(config, index)
        return facts if self.slides[index] else replace(facts, rotary=None)
