"""Phi 1 to 4: the first two are like GPT, Phi-3 is Mistral with fused projections, Phi-3.5 MoE is like Mixtral."""

from __future__ import annotations

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.mlp import Routing, router_logits
from dragoman.models.blocks.nodes import integers, scalar
from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts
from dragoman.models.families.base import Layout
from dragoman.models.families.gpt import Gpt
from dragoman.models.families.llama import ATTENTION_BIAS, LayerNorms, head_size
from dragoman.models.families.mistral import Mistral, Mixtral
from dragoman.models.rotary import RotaryReading, read_rotary, rotary_description
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


# One norm for attention and MLP side by side, positions turn a part of each head.
class Phi(Gpt):
    """Phi-1, Phi-1.5 and Phi-2."""

    layouts = (Layout("model", "lm_head"),)
    table = "embed_tokens"
    layers = "layers"
    layer_norms = LayerNorms("input_layernorm", "input_layernorm")
    attention_name = "self_attn"
    output_name = "dense"
    mlp_names = ("fc1", "fc2")
    final_norm = "final_layernorm"
    head_norm_names = ("q_layernorm", "k_layernorm")
    has_head_bias = True
    is_parallel = True
    is_tied = False
    turns = True
    rotary_part = 0.5

    def read(self, config: Config) -> None:
        config.expect(tie_word_embeddings=False)
        self.head_norms = "each" if config.flag("qk_layernorm") else ""


class Phi3(Mistral):
    """Phi-3 mini, small context and 128k; Phi-3.5 mini; Phi-4 and Phi-4 mini."""

    epsilon = ("rms_norm_eps", 1e-5)
    rotary_part = 1.0
    qkv_name = "qkv_proj"
    mlp_names = ("gate_up_proj", "down_proj")

    def __init__(self, config: Config) -> None:
        config.expect(attention_bias=False, mlp_bias=False, lm_head_bias=False, full_attn_mod=1, interpolate_factor=1)
        config.skip("original_max_position_embeddings")  # longrope reads it, if that is the rule
        super().__init__(config)


# Mixtral with LayerNorm, biases, and experts that are chosen one after the other among their likes.
_OUT = -1e30  # the score of an expert that does not count: its exponential is 0


class PhiExperts(Mixtral):
    """Phi-3.5 MoE."""

    has_layer_norms = True
    qkv_bias = output_bias = ATTENTION_BIAS

    def __init__(self, config: Config) -> None:
        config.expect(num_experts_per_tok=2)
        config.skip("input_jitter_noise")  # only for training
        config.skip("original_max_position_embeddings")  # longrope reads it, if that is the rule
        config.assume(num_local_experts=16, rope_theta=1_000_000.0)
        self.tolerance = 2 * config.number("router_jitter_noise", 0.01)
        self.has_head_bias = config.flag("lm_head_bias")
        super().__init__(config)

    def read_rotary(self, config: Config) -> RotaryReading:
        """Checkpoints have one magnitude for short and long contexts."""
        described = rotary_description(config)
        described.rename({"short_mscale": "attention_factor", "long_mscale": "attention_factor"})
        return read_rotary(config, head_size(config), scaling=described)

    def route(self, x: Node, weights: Weights, facts: ExpertFacts) -> Routing:
        """The best two; each counts as it does among those that are hardly worse (SparseMixer, arXiv:2409.12136)."""
        scores = router_logits(x, weights.at(self.router_name), facts.num_experts)
        first, first_share = self._best(scores, scores)
        out = ops.broadcast(scalar(_OUT), ops.shape_of(first, "i64"))
        others = ops.scatter_elements_update(scores, first, out, scalar(1, np.int64)).output(0)
        second, second_share = self._best(others, scores)
        return Routing(*(ops.concat(pair, 1).output(0) for pair in ([first, second], [first_share, second_share])))

    def _best(self, left: Node, scores: Node) -> tuple[Node, Node]:
        """Best of those left, and its share. Shapes: f32 [T, experts] both -> i64, f32 [T, 1]."""
        best = ops.topk(left, scalar(1, np.int64), 1, "max", "value", index_element_type="i64")
        highest = best.output(0)
        size = ops.maximum(ops.abs(scores), highest)
        is_worse = ops.greater(ops.divide(ops.subtract(highest, scores), size), scalar(self.tolerance))
        shares = ops.softmax(ops.select(is_worse, scalar(_OUT), left), 1)
        return best.output(1), ops.reduce_max(shares, integers(1), True).output(0)
