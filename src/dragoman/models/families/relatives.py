"""Families that differ from Llama in few lines: one class for each, by which `architectures.FAMILIES` finds it.

Sources: Nemotron-4, arXiv:2402.16819; xIELU, arXiv:2411.13010; the releases of the others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.attention import Projections, by_group
from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import ACTIVATIONS, Routing, route
from dragoman.models.blocks.nodes import add, multiply, scalar, scaled, width
from dragoman.models.blocks.norms import head_layer_norm
from dragoman.models.blocks.rotary import pair_order
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, ExpertFacts, MlpFacts, RoutingRule
from dragoman.models.families.base import Layout
from dragoman.models.families.experts import WithExperts, read_experts
from dragoman.models.families.llama import LayerNorms, Llama, all_but_every, no_slides, read_slides
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


# Rotary pairs lie side by side.
class Helium(Llama):
    """Helium 1 2B."""

    epsilon = ("rms_norm_eps", 1e-8)
    has_interleaved_pairs = True


class SeedOss(Llama):
    """Seed-OSS: the output's bias has its own switch."""

    qkv_bias = ("attention_bias", True)
    output_bias = ("attention_out_bias", False)


class Ernie45(Llama):
    """ERNIE 4.5, dense: adjacent rotary pairs, one switch for all biases."""

    epsilon = ("rms_norm_eps", 1e-5)
    has_interleaved_pairs = True
    qkv_bias = output_bias = mlp_bias = ("use_bias", False)
    is_tied = True

    def __init__(self, config: Config) -> None:
        config.expect(compression_ratio=1.0)
        super().__init__(config)


class ErnieExperts(WithExperts, Ernie45):
    """ERNIE 4.5 21B-A3B, 300B-A47B. Layers that guess further tokens are ignored."""

    unread = (*WithExperts.unread, r"^model\.mtp_")

    def __init__(self, config: Config) -> None:
        config.expect(moe_gate="topk", moe_use_aux_free=True, use_bias=False, use_rmsnorm=True)
        config.skip("moe_capacity", "num_nextn_predict_layers")  # only for training
        super().__init__(config)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts | None:
        first = config.count("moe_layer_start_index", 1, least=0)
        last = config.count("moe_layer_end_index", -1, least=-1)
        rule = RoutingRule(is_normalized=True, least_sum=config.number("moe_norm_min", 1e-12))
        facts = read_experts(config, rule, "moe_num_experts", active="moe_k")
        facts = replace(facts, shared_size=config.count("moe_num_shared_experts", 2, least=0) * facts.inner_size)
        is_dense = index < first or (last != -1 and index > last) or (index + 1) % config.count("moe_layer_interval", 1)
        return None if is_dense else facts

    def route(self, x: Node, weights: Weights, facts: ExpertFacts) -> Routing:
        stored = weights.at("moe_statics").stacked(0, 1)
        bias = stored.vector(facts.num_experts, "e_score_correction_bias")
        return route(x, weights.at(self.router_name), facts, choice_bias=bias)


# Some layers do not turn by position.
class SmolLM3(Llama):
    """SmolLM3 3B."""

    is_tied = True

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        """None in the published model; if switched on, the layers that do not turn."""
        self.turns = self.read_turns(config)
        config.skip("max_window_layers")
        if config.flag("use_sliding_window") and "sliding_window" in config:
            return read_slides(config, lambda index: not self.turns[index])
        return no_slides(config)

    def read_turns(self, config: Config) -> tuple[bool, ...]:
        num_layers = config.count("num_hidden_layers")
        interval = config.count("no_rope_layer_interval", 4)
        if "no_rope_layers" in config:
            return tuple(flag != 0 for flag in config.numbers("no_rope_layers", num_layers))
        return tuple(map(all_but_every(interval), range(num_layers)))

    def is_turned(self, index: int) -> bool:
        return self.turns[index]


# LayerNorm, a part of each head turns; some models norm heads, or run attention and MLP in parallel.
class StableLm(Llama):
    """StableLM 3B, 2 1.6B, 2 12B, Stable Code."""

    epsilon = ("layer_norm_eps", 1e-5)
    has_layer_norms = True
    rotary_part = 0.25
    qkv_bias = ("use_qkv_bias", False)
    output_bias = False
    head_norm_names = ("q_layernorm.norms", "k_layernorm.norms")

    def __init__(self, config: Config) -> None:
        if config.flag("use_parallel_residual"):
            self.is_parallel, self.layer_norms = True, LayerNorms(before_mlp="input_layernorm")
        self.head_norms = "each" if config.flag("qk_layernorm") else ""
        super().__init__(config)

    def head_norm(self, x: Node, weights: Weights, num_heads: int) -> Node:
        weight = np.stack([weights.at(str(head)).vector(width(x)) for head in range(num_heads)])
        return head_layer_norm(x, weight, self.norm_epsilon)


# Other names, and one matrix for queries, keys and values.
class InternLM2(Llama):
    """InternLM2 and InternLM2.5 of 1.8B, 7B and 20B."""

    layouts = (Layout("model", "output"),)
    table = "tok_embeddings"
    layer_norms = LayerNorms("attention_norm", "ffn_norm")
    attention_name = "attention"
    qkv_name = "wqkv"
    output_name = "wo"
    mlp_name = "feed_forward"
    mlp_names = ("w1", "w3", "w2")
    qkv_bias = output_bias = ("bias", True)

    def __init__(self, config: Config) -> None:
        config.expect(rope_pos_id_version="default")  # otherwise pictures' tokens advance by less than one position
        config.skip("rope_pos_id_stride")
        super().__init__(config)

    def cut(self, fused: Weights, facts: AttentionFacts) -> Projections:
        return by_group(fused, facts)


# Without a gate in the MLP; Nemotron and Jais 2 with LayerNorm, Apertus with xIELU.
class Arcee(Llama):
    """Arcee's AFM 4.5B."""

    epsilon = ("rms_norm_eps", 1e-5)
    mlp_names = ("up_proj", "down_proj")
    has_gate = False

    def mlp_facts(self, config: Config, index: int) -> MlpFacts:
        return MlpFacts(config.count("intermediate_size"), config.choice("hidden_act", ACTIVATIONS, "relu2"))


class Nemotron(Arcee):
    """Nemotron-4 and Minitron, dense: norms add one to their weights, half of a head has rotary positions."""

    epsilon = ("norm_eps", 1e-5)
    rotary_part = 0.5
    has_layer_norms = True
    norm_offset = 1.0


class Jais2(Arcee):
    """Jais 2 8B and 70B: biases everywhere."""

    epsilon = ("layer_norm_eps", 1e-5)
    has_layer_norms = True

    def __init__(self, config: Config) -> None:
        config.assume(attention_bias=True, mlp_bias=True)
        super().__init__(config)


class Apertus(Llama):
    """Apertus 8B and 70B."""

    epsilon = ("rms_norm_eps", 1e-5)
    layer_norms = LayerNorms("attention_layernorm", "feedforward_layernorm")
    head_norms = "each"

    def __init__(self, config: Config) -> None:
        config.expect(mlp_bias=False, post_norm=False, qk_norm=True)
        config.assume(rope_theta=12_000_000.0)
        super().__init__(config)

    def mlp_facts(self, config: Config, index: int) -> MlpFacts:
        return MlpFacts(config.count("intermediate_size"), config.choice("hidden_act", ("xielu",), "xielu"))

    def mlp(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        inner = linear(x, weights.at("up_proj"), self.facts.layers[layer.index].mlp.inner_size)
        return linear(_xielu(inner, weights.at("act_fn")), weights.at("down_proj"), width(x))


def _xielu(x: Node, weights: Weights) -> Node:
    """A parabola above zero, and below it what an exponential leaves of a line; how steep they are is learned."""
    positive, negative = (float(np.logaddexp(0, weights.vector(1, name)[0])) for name in ("alpha_p", "alpha_n"))
    slope, edge = (float(np.asarray(weights.tensor((), name)).astype(np.float32)) for name in ("beta", "eps"))
    above = scaled(multiply(x, x), positive)
    fallen = add(ops.elu(ops.minimum(x, scalar(edge)), 1.0).output(0), scaled(x, -1.0))
    is_above = ops.greater(x, scalar(0.0))
    return add(ops.select(is_above, above, scaled(fallen, slope + negative)).output(0), scaled(x, slope))


# Attention and MLP in parallel after one LayerNorm without bias, scaled logits.
class Cohere(Llama):
    """Command R, R+ and Aya."""

    epsilon = ("layer_norm_eps", 1e-5)
    layer_norms = LayerNorms(before_mlp="input_layernorm")
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
