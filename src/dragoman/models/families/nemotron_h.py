"""Nemotron H: each layer is a scan, attention without positions, an MLP, or experts. No gates. Source: arXiv:2504.03624."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dragoman.models.blocks.attention import attend, queries_keys_values
from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import ACTIVATIONS, PlainExpertWeights, evaluate_experts, plain_mlp, route
from dragoman.models.blocks.nodes import add, split_heads
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import (
    NO_MLP,
    AttentionFacts,
    ExpertFacts,
    LayerFacts,
    MlpFacts,
)
from dragoman.models.families.base import Family, Layout
from dragoman.models.families.experts import active_count, check_groups, grouped_rule
from dragoman.models.families.llama import head_counts, head_size
from dragoman.models.families.scans import ScanKeys, read_scan, scanned
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

_KEYS = ScanKeys(
    "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel", "expand", "use_conv_bias",
    "mamba_proj_bias", "use_bias", "chunk_size",
)  # fmt: skip
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_SCANS, _ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")
_EXPERT_KEYS = """
    n_routed_experts n_shared_experts moe_intermediate_size moe_shared_expert_intermediate_size moe_latent_size
    num_experts_per_tok routed_scaling_factor n_group topk_group norm_topk_prob
"""
# Keys about guesses, unused positions, other libraries, and the first values of training.
_UNUSED_KEYS = """
    moe_shared_expert_overlap num_nextn_predict_layers mtp_layers_block_type mtp_hybrid_override_pattern
    output_router_logits residual_in_fp32 rescale_prenorm_residual time_step_max time_step_floor num_logits_to_keep
    use_mamba_kernels mamba_ssm_cache_dtype mamba_dt_init_floor mamba_dt_max mamba_dt_min mamba_dt_limit mamba_expand
    mamba_d_conv is_mamba2 attention_head_dim num_hidden_layers norm_eps rope_theta partial_rotary_factor
"""


class NemotronH(Family):
    """Nemotron H 4B to 56B, Nemotron Nano 2 of 9B and 12B, Nemotron 3 Nano 30B-A3B."""

    layouts = (Layout("backbone", "lm_head"), Layout("model", "lm_head"))
    table = "embeddings"
    final_norm = "norm_f"
    unread = (r"^mtp\.",)

    def __init__(self, config: Config) -> None:
        config.skip(*_UNUSED_KEYS.split())
        config.expect(sliding_window=None)
        self.norm_epsilon = config.positive("layer_norm_epsilon", config.positive("rms_norm_eps", 1e-5))
        self.is_tied = config.flag("tie_word_embeddings", self.is_tied)
        self.has_mlp_bias, self.has_attention_bias = config.flag("mlp_bias"), config.flag("attention_bias")
        scan = read_scan(
            config,
            self.norm_epsilon,
            _KEYS,
            inner_width=config.count("mamba_num_heads") * config.count("mamba_head_dim", 64),
            activation="mamba_hidden_act",
        )
        limits = (
            config.number("time_step_min", 0.001),
            float("inf"),
        )  # transformers uses these instead of the file's
        self.scan = replace(scan, facts=replace(scan.facts, step_limits=limits))
        self.facts = self.read_ends(config, self._layers(config), config.count("max_position_embeddings"))

    def _layers(self, config: Config) -> Iterator[LayerFacts]:
        num_heads, num_kv_heads = head_counts(config)
        size = head_size(config)
        attention = AttentionFacts(num_heads, num_kv_heads, size, size, size**-0.5)
        activation = config.choice("mlp_hidden_act", ACTIVATIONS, "relu2")
        mlp, kinds = MlpFacts(config.count("intermediate_size"), activation), _kinds(config)
        if "moe" in kinds:
            experts = self._experts(config, activation)
        else:
            config.skip(*_EXPERT_KEYS.split())
        for kind in kinds:
            if kind in _SCANS:
                yield LayerFacts(self.scan.facts, NO_MLP)
            elif kind in _ATTENTION:
                yield LayerFacts(attention, NO_MLP)
            else:
                yield LayerFacts(None, experts if kind == "moe" else mlp)

    def _experts(self, config: Config, activation: str) -> ExpertFacts:
        config.expect(n_shared_experts=1)
        config.assume(topk_group=1)
        num_experts, rule = config.count("n_routed_experts", 8), grouped_rule(config, "sigmoid")
        active = active_count(config, "num_experts_per_tok", num_experts)
        inner_size = config.count("moe_intermediate_size")
        shared_size = config.count("moe_shared_expert_intermediate_size")
        facts = ExpertFacts(num_experts, active, inner_size, activation, rule, shared_size)
        check_groups(facts)
        self.latent_size = None if config.value("moe_latent_size") is None else config.count("moe_latent_size")
        return facts

    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        facts, mixer = self.facts.layers[layer.index], weights.at("mixer")
        normed, kept = self.norm(x, weights.at("norm")), layer.keep(x)
        if facts.mixer == self.scan.facts:
            return add(kept, scanned(normed, mixer, layer, self.scan))
        if facts.attention is not None:
            return add(kept, self._attention(normed, mixer, layer))
        inside = layer.keep(normed)
        if isinstance(facts.mlp, ExpertFacts):
            return add(kept, self._routed(inside, mixer, facts.mlp))
        return add(kept, self._mlp(inside, mixer, facts.mlp.inner_size, facts.mlp.activation))

    def _mlp(self, x: Node, weights: Weights, inner_size: int, activation: str) -> Node:
        up, down = weights.at("up_proj"), weights.at("down_proj")
        return plain_mlp(x, up, down, inner_size, activation, bias=self.has_mlp_bias)

    def _routed(self, x: Node, weights: Weights, facts: ExpertFacts) -> Node:
        """By the expert for all tokens, and by others, which may read and write narrower vectors."""
        bias = weights.vector(facts.num_experts, "gate.e_score_correction_bias")
        routing = route(x, weights.at("gate"), facts, choice_bias=bias)
        inside = x
        if self.latent_size is not None:
            inside = linear(x, weights.at("fc1_latent_proj"), self.latent_size, bias=self.has_mlp_bias)
        routed = evaluate_experts(inside, routing, _expert_weights(weights.at("experts"), facts.num_experts), facts)
        if self.latent_size is not None:
            routed = linear(routed, weights.at("fc2_latent_proj"), self.facts.hidden_size, bias=self.has_mlp_bias)
        return add(routed, self._mlp(x, weights.at("shared_experts"), facts.shared_size, facts.activation))

    def _attention(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        facts, bias = layer.attention, self.has_attention_bias
        projections = (weights.at("q_proj"), weights.at("k_proj"), weights.at("v_proj"))
        q, k, v = queries_keys_values(x, projections, facts, bias=bias)
        attended = attend(split_heads(q, facts.num_heads), split_heads(k, facts.num_kv_heads), v, layer)
        return linear(attended, weights.at("o_proj"), self.facts.hidden_size, bias=bias)


def _expert_weights(weights: Weights, num_experts: int) -> list[PlainExpertWeights]:
    if "up_proj" in weights:
        raised, lowered = weights.renamed(weight="up_proj"), weights.renamed(weight="down_proj")
        return [
            PlainExpertWeights(raised.stacked(index, num_experts), lowered.stacked(index, num_experts))
            for index in range(num_experts)
        ]
    experts = (weights.at(f"{index}") for index in range(num_experts))
    return [PlainExpertWeights(expert.at("up_proj"), expert.at("down_proj")) for expert in experts]


def _kinds(config: Config) -> list[str]:
    pattern, listed = config.value("hybrid_override_pattern"), config.value("layers_block_type")
    if listed is None:
        listed = config.value("layer_types")
    if listed is None and isinstance(pattern, str) and set(pattern) <= set(_LETTERS):
        listed = [_LETTERS[letter] for letter in pattern]
    allowed = (*_SCANS, *_ATTENTION, "mlp", "moe")
    if not isinstance(listed, list) or not listed or not all(kind in allowed for kind in listed):
        raise config.error("layers_block_type", f"a list of: {', '.join(allowed)}")
    return listed
