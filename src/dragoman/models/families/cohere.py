"""Cohere's Command R and R7B: attention and MLP in parallel after one LayerNorm without bias, scaled logits."""

from __future__ import annotations

import numpy as np

from dragoman.models.blocks.nodes import width
from dragoman.models.blocks.norms import head_layer_norm
from dragoman.models.blocks.rotary import pair_order
from dragoman.models.config import Config
from dragoman.models.families.llama import LayerNorms, Llama
from dragoman.models.families.windows import all_but_every, read_slides
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Cohere(Llama):
    """Command R, R+ and Aya."""

    architectures = ("CohereForCausalLM",)
    epsilon = ("layer_norm_eps", 1e-5)
    layer_norms = LayerNorms(before_mlp="")
    has_layer_norms = True
    has_norm_bias = False
    has_interleaved_pairs = True
    is_parallel = True
    is_tied = True

    def __init__(self, config: Config) -> None:
        self.logits_factor = config.number("logit_scale", 0.0625)
        self.head_norms = "each" if config.flag("use_qk_norm") else ""
        config.skip("model_max_length")
        super().__init__(config)

    def head_norm(self, x: Node, weights: Weights, num_heads: int) -> Node:
        size = width(x)
        weight = np.asarray(weights.tensor((num_heads, size)))
        return head_layer_norm(x, weight[:, pair_order(1, size, size)], self.norm_epsilon)  # in x's order


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
        return read_slides(config, all_but_every(config.count("sliding_window_pattern", 4)))

    def is_turned(self, index: int) -> bool:
        return self.slides[index]
