"""StableLM: Llama with LayerNorm that turns a part of each head; some norm heads, or run attention and MLP in parallel."""

from __future__ import annotations

import numpy as np

from dragoman.models.blocks.nodes import width
from dragoman.models.blocks.norms import head_layer_norm
from dragoman.models.config import Config
from dragoman.models.families.llama import Llama
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class StableLm(Llama):
    """StableLM 3B, 2 1.6B, 2 12B, Stable Code."""

    architectures = ("StableLmForCausalLM",)
    epsilon = ("layer_norm_eps", 1e-5)
    has_layer_norms = True
    rotary_part = 0.25
    qkv_bias = ("use_qkv_bias", False)
    output_bias = False
    head_norm_names = ("q_layernorm.norms", "k_layernorm.norms")

    def __init__(self, config: Config) -> None:
        self.is_parallel = config.flag("use_parallel_residual")
        self.head_norms = "each" if config.flag("qk_layernorm") else ""
        super().__init__(config)

    def head_norm(self, x: Node, weights: Weights, num_heads: int) -> Node:
        weight = np.stack([weights.at(str(head)).vector(width(x)) for head in range(num_heads)])
        return head_layer_norm(x, weight, self.norm_epsilon)
