"""Phi 1 to 4: the first two are like GPT, Phi-3 is Mistral with fused projections, Phi-3.5 MoE is like Mixtral."""

from __future__ import annotations

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.attention import Projections, in_turn
from dragoman.models.blocks.mlp import Routing, router_logits
from dragoman.models.blocks.nodes import integers, scalar
from dragoman.models.blocks.norms import layer_norm
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, ExpertFacts
from dragoman.models.families.base import Layout
from dragoman.models.families.gpt import Gpt, Names
from dragoman.models.families.llama import ATTENTION_BIAS, head_size
from dragoman.models.families.mistral import Mistral, Mixtral
from dragoman.models.rotary import RotaryReading, read_rotary, rotary_description
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


# One norm for attention and MLP side by side, positions turn a part of each head.
class Phi(Gpt):
    """Phi-1, Phi-1.5 and Phi-2."""

    architectures = ("PhiForCausalLM",)
    layouts = (Layout("model", "lm_head"),)
    table = "embed_tokens"
    layers = "layers"
    names = Names(
        "input_layernorm",
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "self_attn.dense",
        "input_layernorm",
        "mlp.fc1",
        "mlp.fc2",
    )
    final_norm = "final_layernorm"
    is_tied = False
    has_head_bias = True

    def read(self, config: Config) -> None:
        config.expect(tie_word_embeddings=False)
        self.has_query_key_norms = config.flag("qk_layernorm")
        self.rotary = read_rotary(config, head_size(config), part=0.5)

    def heads(self, q: Node, k: Node, weights: Weights) -> tuple[Node, Node]:
        if not self.has_query_key_norms:
            return q, k
        names = ("self_attn.q_layernorm", "self_attn.k_layernorm")
        q_weights, k_weights = (weights.at(name) for name in names)
        return layer_norm(q, q_weights, self.norm_epsilon), layer_norm(k, k_weights, self.norm_epsilon)


class Phi3(Mistral):
    """Phi-3 mini, small context and 128k; Phi-3.5 mini; Phi-4 and Phi-4 mini."""

    architectures = ("Phi3ForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    rotary_part = 1.0
    mlp_names = ("gate_up_proj", "down_proj")

    def __init__(self, config: Config) -> None:
        config.expect(attention_bias=False, mlp_bias=False, lm_head_bias=False, full_attn_mod=1, interpolate_factor=1)
        config.skip("original_max_position_embeddings")  # longrope reads it, if that is the rule
        super().__init__(config)

    def projections(self, weights: Weights, facts: AttentionFacts) -> Projections:
        return in_turn(weights.at("qkv_proj"), facts)


# Mixtral with LayerNorm, biases, and experts that are chosen one after the other among their likes.
_OUT = -1e30  # the score of an expert that does not count: its exponential is 0


class PhiExperts(Mixtral):
    """Phi-3.5 MoE."""

    architectures = ("PhiMoEForCausalLM", "PhimoeForCausalLM")  # type: ignore[assignment]
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
