"""Arcee's Trinity: DeepSeek V3's experts, gated attention, norms on both sides of each part; full layers do not rotate."""

from __future__ import annotations

from openvino import opset13 as ops

from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.nodes import multiply
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.families.deepseek import BiasedExperts
from dragoman.models.families.llama import LayerNorms
from dragoman.models.families.windows import all_but_every, read_slides
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Afmoe(BiasedExperts):
    """Trinity Nano, Mini and Large."""

    architectures = ("AfmoeForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    layer_norms = LayerNorms("input_layernorm", "pre_mlp_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
    head_norms = "each"
    router_name = "router.gate"
    bias_name = "expert_bias"

    def __init__(self, config: Config) -> None:
        config.rename(
            {
                "num_dense_layers": "first_k_dense_replace",
                "num_experts": "n_routed_experts",
                "num_shared_experts": "n_shared_experts",
                "route_norm": "norm_topk_prob",
                "route_scale": "routed_scaling_factor",
                "score_func": "scoring_func",
            }
        )
        config.assume(first_k_dense_replace=1, n_shared_experts=2)
        config.expect(n_group=1, norm_topk_prob=True, num_expert_groups=1, num_limited_groups=1, topk_group=1)
        config.skip("load_balance_coeff", "use_grouped_mm")
        if config.flag("mup_enabled"):
            self.embedding_factor = config.count("hidden_size") ** 0.5
        super().__init__(config)

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        return read_slides(config, all_but_every(config.count("global_attn_every_n_layers", 4)))

    def is_turned(self, index: int) -> bool:
        return self.slides[index]

    def gated(self, attended: Node, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        gate = linear(layer.keep(x), weights.at("gate_proj"), layer.attention.output_width)
        return multiply(attended, ops.sigmoid(gate).output(0))
