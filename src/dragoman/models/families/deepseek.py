"""DeepSeek V2 and V3: latent attention, and experts beside some that every token takes, in all but the first layers.

Keys and values are made of one narrow vector per token, here with its heads expanded: the cache holds those of heads.
Source: DeepSeek-V2 (arXiv:2405.04434), multi-head latent attention. dots.llm1 and Arcee's Trinity have V3's experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.attention import attend
from dragoman.models.blocks.linear import linear, linears
from dragoman.models.blocks.nodes import concat, integers, multiply, split_heads, unsqueeze
from dragoman.models.blocks.norms import rms_norm
from dragoman.models.blocks.rotary import pair_order
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, ExpertFacts, RoutingRule
from dragoman.models.families.experts import ChosenWithBias, WithExperts, grouped_rule, read_experts
from dragoman.models.families.llama import LayerNorms, Llama, all_but_every, read_slides
from dragoman.models.families.qwen import Qwen3
from dragoman.models.rotary import RotaryReading, read_rotary, rotary_description, yarn_growth
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Sizes of the rotated and the other part of a head, of a value, and of the narrow vectors.

    `query_rank` 0 = queries are made of the hidden states. `is_interleaved`: pairs for rotation lie side by side.
    """

    num_heads: int
    turned_size: int
    plain_size: int
    value_size: int
    rank: int
    query_rank: int
    is_interleaved: bool

    @property
    def head_size(self) -> int:
        return self.turned_size + self.plain_size


def latent_heads(x: Node, weights: Weights, shape: LatentShape, epsilon: float) -> tuple[Node, Node, Node]:
    """Queries, keys and values. Heads hold the rotated part first, which scores do not notice.

    Shapes: x [T, 1, hidden] -> q, k [T, heads, 1, size], v [T, 1, heads * value size].
    """
    heads, rank, turned = shape.num_heads, shape.rank, shape.turned_size
    narrow = weights.at("kv_a_proj_with_mqa")
    order = pair_order(1, turned, turned) if shape.is_interleaved else np.arange(turned)
    parts = [narrow.rows(slice(0, rank), rank + turned), narrow.rows(rank + order, rank + turned)]
    latent, turned_key = linears(x, parts, [rank, turned], is_fused=narrow.storage.format.fuses_attention)
    latent = rms_norm(latent, weights.at("kv_a_layernorm"), epsilon)
    size = shape.plain_size + shape.value_size
    expanded = weights.at("kv_b_proj")
    rows = np.split(np.arange(heads * size).reshape(heads, size), [shape.plain_size], axis=1)
    parts = [expanded.rows(part.reshape(-1), heads * size) for part in rows]
    widths = [heads * shape.plain_size, heads * shape.value_size]
    plain_keys, v = linears(latent, parts, widths, is_fused=narrow.storage.format.fuses_attention)
    shared = ops.tile(unsqueeze(turned_key, 1), integers(1, heads, 1, 1)).output(0)
    return _queries(x, weights, shape, epsilon), concat([shared, split_heads(plain_keys, heads)]), v


def _queries(x: Node, weights: Weights, shape: LatentShape, epsilon: float) -> Node:
    matrix = weights.at("q_b_proj" if shape.query_rank else "q_proj")
    if shape.query_rank:
        x = rms_norm(linear(x, weights.at("q_a_proj"), shape.query_rank), weights.at("q_a_layernorm"), epsilon)
    turned, plain, width = shape.turned_size, shape.plain_size, shape.num_heads * shape.head_size
    order = pair_order(1, turned, turned) if shape.is_interleaved else np.arange(turned)
    head = np.concatenate([plain + order, np.arange(plain)])
    rows = (np.arange(shape.num_heads)[:, None] * shape.head_size + head).reshape(-1)
    return split_heads(linear(x, matrix.rows(rows, width), width), shape.num_heads)


class LatentAttention(Llama):
    def __init__(self, config: Config) -> None:
        config.expect(attention_bias=False)
        config.skip("num_key_value_heads", "head_dim", "qk_head_dim")  # these follow from other keys
        self.latent = LatentShape(
            num_heads=config.count("num_attention_heads"),
            turned_size=config.count("qk_rope_head_dim"),
            plain_size=config.count("qk_nope_head_dim"),
            value_size=config.count("v_head_dim"),
            rank=config.count("kv_lora_rank"),
            query_rank=config.count("q_lora_rank", 0, least=0),
            is_interleaved=config.flag("rope_interleave", True),
        )
        super().__init__(config)

    def read_rotary(self, config: Config) -> RotaryReading:
        return read_rotary(config, self.latent.turned_size)

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        shape, described = self.latent, rotary_description(config)
        weight = described.number("mscale_all_dim", 0.0)
        growth = yarn_growth(described.number("factor"), weight) if weight else 1.0
        scale = shape.head_size**-0.5 * growth**2
        return AttentionFacts(
            shape.num_heads, shape.num_heads, shape.head_size, shape.value_size, scale, rotary=self.rotary.rule
        )

    def attention(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        attended = attend(*latent_heads(x, weights, self.latent, self.norm_epsilon), layer)
        return linear(attended, weights.at("o_proj"), self.facts.hidden_size)


class RoutedExperts(WithExperts):
    """Dense MLPs in the first layers, then experts, some of which every token takes."""

    def __init__(self, config: Config) -> None:
        config.expect(moe_layer_freq=1)
        config.skip("aux_loss_alpha", "seq_aux", "ep_size")  # only for training
        super().__init__(config)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts | None:
        facts = read_experts(config, self.routing_rule(config), "n_routed_experts")
        facts = replace(facts, shared_size=config.count("n_shared_experts", 0, least=0) * facts.inner_size)
        kinds = config.choices("mlp_layer_types", ("dense", "sparse"), config.count("num_hidden_layers"))
        first = config.count("first_k_dense_replace", 0, least=0)
        return facts if (kinds[index] == "sparse" if kinds else index >= first) else None

    def routing_rule(self, config: Config) -> RoutingRule:
        config.expect(scoring_func="softmax", norm_topk_prob=False)
        scale = config.number("routed_scaling_factor", 1.0)
        if config.choice("topk_method", ("greedy", "group_limited_greedy"), "greedy") == "greedy":
            config.skip("n_group", "topk_group")
            return RoutingRule(scale=scale)
        return RoutingRule(
            scale=scale, num_groups=config.count("n_group"), num_active_groups=config.count("topk_group")
        )


class BiasedExperts(ChosenWithBias, RoutedExperts):
    """Experts chosen with a bias. Layers that guess further tokens are not read. `scoring`: the sigmoid's names."""

    scoring: ClassVar[tuple[str, ...]] = ("sigmoid",)

    def __init__(self, config: Config) -> None:
        first = config.count("num_hidden_layers")
        guessing = range(first, first + config.count("num_nextn_predict_layers", 0, least=0))
        self.unread = (*self.unread, *(rf"^model\.layers\.{index}\." for index in guessing))
        super().__init__(config)

    def routing_rule(self, config: Config) -> RoutingRule:
        config.choice("scoring_func", self.scoring, self.scoring[0])
        config.expect(topk_method="noaux_tc")
        return grouped_rule(config, "sigmoid")


class DeepseekV2(LatentAttention, RoutedExperts):
    """DeepSeek V2, V2-Lite and their Coders."""


class DeepseekV3(LatentAttention, BiasedExperts):
    """DeepSeek V3, R1, Moonlight, Kimi K2."""


class Dots1(BiasedExperts, Qwen3):
    """dots.llm1."""

    scoring = ("noaux_tc", "sigmoid")  # checkpoints name the method there

    def __init__(self, config: Config) -> None:
        config.assume(norm_topk_prob=False, use_sliding_window=True)
        super().__init__(config)


# Gated attention, and norms on both sides of each part; layers without a window do not rotate.
class Afmoe(BiasedExperts):
    """Trinity Nano, Mini and Large."""

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
