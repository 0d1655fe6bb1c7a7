"""Zamba 2: every layer scans; before some of them one of a few transformer blocks reads the embeddings once more.

Such a block serves many layers, each of which has its own adapters of low rank for it. Source: arXiv:2411.15242.
"""

from __future__ import annotations

from dataclasses import replace

from openvino import opset13 as ops

from dragoman.models.blocks.attention import attend
from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import add, multiply, split, split_heads
from dragoman.models.blocks.step import LayerInputs, StepInputs
from dragoman.models.config import Config
from dragoman.models.facts import NO_MLP, AttentionFacts, LayerFacts, ModelFacts
from dragoman.models.families.base import Family
from dragoman.models.families.llama import head_counts
from dragoman.models.families.scans import ScanKeys, read_scan, scanned
from dragoman.models.rotary import read_rotary
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

_KEYS = ScanKeys(
    "n_mamba_heads", "mamba_headdim", "mamba_ngroups", "mamba_d_state", "mamba_d_conv", "mamba_expand", "use_conv_bias",
    "add_bias_linear", "add_bias_linear", "chunk_size",
)  # fmt: skip
_SCAN_EPSILON = 1e-5  # independent of other norms
# Keys that repeat others, or are about other libraries, or the first values of training.
_UNUSED_KEYS = """
    attention_hidden_size hybrid_layer_ids kv_channels num_query_groups num_logits_to_keep time_step_floor time_step_max
    use_mamba_kernels use_mem_eff_path layer_types ffn_hidden_size state_size
"""
_EMBEDDINGS = "embeddings"


class Zamba2(Family):
    """Zamba 2 of 1.2B, 2.7B and 7B; a block that several layers share is in memory once."""

    architectures = ("Zamba2ForCausalLM",)
    final_norm = "final_layernorm"
    is_tied: bool = True

    def __init__(self, config: Config) -> None:
        config.skip(*_UNUSED_KEYS.split())
        config.expect(use_long_context=False)
        self.norm_epsilon = config.positive("rms_norm_eps", 1e-5)
        config.expect(tie_word_embeddings=True)  # without it transformers would not share blocks either
        self.has_bias = config.flag("add_bias_linear")
        config.expect(use_conv_bias=True)
        scan = read_scan(config, _SCAN_EPSILON, _KEYS, activation="mamba_act")
        limits = (config.number("time_step_min", 0.001), float("inf"))
        self.scan = replace(scan, facts=replace(scan.facts, step_limits=limits))
        self.inner_size = config.count("intermediate_size", 4 * config.count("hidden_size"))
        self.activation = config.choice("hidden_act", ACTIVATIONS, "gelu")
        self.rank = config.count("adapter_rank", 128)
        self.adapts_attention = config.flag("use_shared_attention_adapter")
        self.facts = self._read_facts(config)
        # The blocks lie in the first layers that use them; files may repeat them in others.
        self.unread = (*self.unread, *(rf"\.{index}\.shared_transformer\." for index in self.users[self.num_blocks :]))

    def _read_facts(self, config: Config) -> ModelFacts:
        num_layers = config.count("num_hidden_layers")
        kinds = config.choices("layers_block_type", ("mamba", "linear_attention", "hybrid"), num_layers)
        if kinds is None or kinds[-1] == "hybrid":
            raise config.error("layers_block_type", f"a list of {num_layers} of: mamba, hybrid; the last one mamba")
        self.users = [index for index, kind in enumerate(kinds) if kind == "hybrid"]
        self.num_blocks = config.count("num_mem_blocks", 1)
        num_heads, num_kv_heads = head_counts(config)
        size = 2 * config.count("hidden_size") // num_heads
        if config.count("attention_head_dim", size) != size:
            raise config.error("attention_head_dim", f"{size}, twice the hidden size divided by the heads")
        config.assume(max_position_embeddings=4096)
        rotary = read_rotary(config, size)
        rule = rotary.rule if config.flag("use_mem_rope") else None
        attention = AttentionFacts(num_heads, num_kv_heads, size, size, (size / 2) ** -0.5, rotary=rule)
        layers = (
            LayerFacts(attention, NO_MLP, self.scan.facts) if kind == "hybrid" else LayerFacts(self.scan.facts, NO_MLP)
            for kind in kinds
        )
        return self.read_ends(config, layers, rotary.max_position)

    def begin(self, x: Node, body: Weights, step: StepInputs) -> Node:
        step.handed_on[_EMBEDDINGS] = x
        self.blocks = [body.at(f"{self.layers}.{index}.shared_transformer") for index in self.users[: self.num_blocks]]
        return x

    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        if layer.index not in self.users:
            return add(layer.keep(x), self._scanned(x, weights, layer))
        user = self.users.index(layer.index)
        change = self._shared(x, self.blocks[user % self.num_blocks], user, layer)
        change = linear(change, weights.at("linear"), self.facts.hidden_size)
        return add(x, self._scanned(add(x, change), weights.at("mamba_decoder"), layer))

    def _scanned(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        return scanned(self.norm(x, weights.at("input_layernorm")), weights.at("mamba"), layer, self.scan)

    def _shared(self, x: Node, block: Weights, user: int, layer: LayerInputs) -> Node:
        facts, attention, mlp = layer.attention, block.at("self_attn"), block.at("feed_forward")
        both = ops.concat([x, layer.step.handed_on[_EMBEDDINGS]], -1).output(0)
        normed = self.norm(both, block.at("input_layernorm"))
        widths = (facts.query_width, facts.key_width, facts.value_width)
        q, k, v = (
            linear(normed, attention.at(f"{name}_proj"), width) for name, width in zip("qkv", widths, strict=True)
        )
        if self.adapts_attention:
            q, k, v = (
                add(part, self._adapted(normed, attention.at(f"linear_{name}_adapter_list.{user}"), width))
                for part, name, width in zip((q, k, v), "qkv", widths, strict=True)
            )
        attended = attend(split_heads(q, facts.num_heads), split_heads(k, facts.num_kv_heads), v, layer)
        inside = self.norm(
            linear(attended, attention.at("o_proj"), self.facts.hidden_size), block.at("pre_ff_layernorm")
        )
        raised = linear(inside, mlp.at("gate_up_proj"), 2 * self.inner_size, bias=self.has_bias)
        raised = add(raised, self._adapted(inside, mlp.at(f"gate_up_proj_adapter_list.{user}"), 2 * self.inner_size))
        gate, up = split(raised, [self.inner_size] * 2)
        gated = multiply(ACTIVATIONS[self.activation](gate), up)
        return linear(gated, mlp.at("down_proj"), self.facts.hidden_size, bias=self.has_bias)

    def _adapted(self, x: Node, weights: Weights, width: int) -> Node:
        return linear(linear(x, weights.at("0"), self.rank), weights.at("1"), width)
