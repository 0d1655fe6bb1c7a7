"""Qwen 3.5 and Qwen3-Next: three of four layers mix tokens by a gated delta rule, the others by gated attention.

Source: their releases; Gated DeltaNet, arXiv:2412.06464.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.attention import Projections
from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import multiply, reshape, unsqueeze
from dragoman.models.blocks.norms import rms_norm
from dragoman.models.blocks.recurrence import convolve, gated_delta
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, ConvolutionFacts, DeltaFacts, ModelFacts
from dragoman.models.families.llama import Alternating, HeadNorms, Llama
from dragoman.models.families.qwen import WithSharedExpert
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

_LAYER_TYPES = ("linear_attention", "full_attention")


class DeltaWeights(NamedTuple):
    """The matrices of a gated delta rule: to queries, keys and values below each other; the gate; parts; fades."""

    mixed: Weights
    gate: Weights
    parts: Weights
    fades: Weights


class Qwen35(Alternating):
    """Qwen 3.5 of 0.8B to 27B."""

    architectures = ("Qwen3_5ForCausalLM",)
    unread = (*Llama.unread, r"^mtp\.", r"^model\.visual\.")  # drafts for speculation, images
    norm_offset = 1.0
    rotary_part = 0.25
    head_norms: HeadNorms = "each"

    def __init__(self, config: Config) -> None:
        config.expect(hidden_act="silu", attn_output_gate=True, mamba_ssm_dtype="float32")
        config.skip("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mlp_only_layers")
        super().__init__(config)

    def read_facts(self, config: Config) -> ModelFacts:
        self.attends, self.other = _attending_layers(config), _delta_facts(config)
        self.refuse_no_attention()
        return super().read_facts(config)

    def projections(self, weights: Weights, facts: AttentionFacts) -> Projections:
        """Each head's rows of a gate follow those of its queries."""
        return _alternating(weights, facts, 0), weights.at("k_proj"), weights.at("v_proj")

    def gated(self, attended: Node, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        facts = layer.attention
        gate = linear(x, _alternating(weights, facts, 1), facts.query_width, bias=self.has_qkv_bias)
        return multiply(attended, layer.keep(ops.sigmoid(gate).output(0)))

    def mix_otherwise(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        weights = weights.at("linear_attn")
        facts = self.facts.recurrent_layers[layer.index]
        assert isinstance(facts, DeltaFacts)
        projections = self.delta_weights(weights, facts)
        mixed = convolve(
            linear(x, projections.mixed, facts.convolution.width), weights.at("conv1d"), layer, has_silu=True
        )
        steps, parts = (linear(x, each, facts.num_heads) for each in (projections.fades, projections.parts))
        read = layer.keep(gated_delta(mixed, steps, parts, weights, layer))
        gate = linear(layer.keep(x), projections.gate, facts.value_width)
        gate = reshape(gate, -1, facts.num_heads, facts.value_size)
        gated = multiply(rms_norm(read, weights.at("norm"), self.norm_epsilon), ACTIVATIONS["silu"](gate))
        flat = unsqueeze(reshape(gated, -1, facts.value_width), 1)
        return linear(flat, weights.at("out_proj"), self.facts.hidden_size)

    def delta_weights(self, weights: Weights, facts: DeltaFacts) -> DeltaWeights:
        return DeltaWeights(*(weights.at(f"in_proj_{name}") for name in ("qkv", "z", "b", "a")))


def _alternating(weights: Weights, facts: AttentionFacts, part: int) -> Weights:
    """The rows of queries (`part` 0), or of gates (1)."""
    rows = np.arange(2 * facts.query_width).reshape(facts.num_heads, 2, facts.head_size)
    return weights.at("q_proj").rows(rows[:, part].reshape(-1), 2 * facts.query_width)


def _attending_layers(config: Config) -> tuple[bool, ...]:
    num_layers, interval = config.count("num_hidden_layers"), config.count("full_attention_interval", 4)
    kinds = config.choices("layer_types", _LAYER_TYPES, num_layers)
    return tuple(kinds[i] == "full_attention" if kinds else (i + 1) % interval == 0 for i in range(num_layers))


def _delta_facts(config: Config) -> DeltaFacts:
    num_keys, num_heads = config.count("linear_num_key_heads", 16), config.count("linear_num_value_heads", 32)
    key_size, value_size = config.count("linear_key_head_dim", 128), config.count("linear_value_head_dim", 128)
    if num_heads % num_keys:
        raise config.error("linear_num_value_heads", f"a multiple of linear_num_key_heads {num_keys}")
    width = 2 * num_keys * key_size + num_heads * value_size
    convolution = ConvolutionFacts(width, config.count("linear_conv_kernel_dim", 4, least=2))
    return DeltaFacts(num_keys, num_heads, key_size, value_size, convolution)


class Qwen3Next(Qwen35, WithSharedExpert):
    """Qwen3-Next 80B-A3B."""

    architectures = ("Qwen3NextForCausalLM",)
    read_slides = Llama.read_slides

    def __init__(self, config: Config) -> None:
        config.expect(use_sliding_window=False)
        config.assume(norm_topk_prob=True)
        super().__init__(config)

    def delta_weights(self, weights: Weights, facts: DeltaFacts) -> DeltaWeights:
        """Two tensors by key heads; GGUF files have the first one in two: all queries, keys and values, and the gate."""
        num_readers = facts.num_heads // facts.num_key_heads
        narrow = weights.at("in_proj_ba")
        parts, fades = (
            narrow.rows(rows, 2 * facts.num_heads) for rows in _parts(facts.num_key_heads, (num_readers,) * 2)
        )
        if "in_proj_qkv.weight" in weights:
            return DeltaWeights(weights.at("in_proj_qkv"), weights.at("in_proj_z"), parts, fades)
        q, k, v, z = _parts(facts.num_key_heads, (facts.key_size,) * 2 + (num_readers * facts.value_size,) * 2)
        wide, num_wide = weights.at("in_proj_qkvz"), 2 * (facts.key_width + facts.value_width)
        return DeltaWeights(wide.rows(np.concatenate((q, k, v)), num_wide), wide.rows(z, num_wide), parts, fades)


class Qwen35Experts(Qwen3Next):
    """Qwen 3.5 35B-A3B, 122B-A10B, 397B-A17B."""

    architectures = ("Qwen3_5MoeForCausalLM",)
    delta_weights = Qwen35.delta_weights

    def __init__(self, config: Config) -> None:
        config.expect(norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])
        super().__init__(config)


def _parts(num_groups: int, sizes: tuple[int, ...]) -> list[Array]:
    rows = np.arange(num_groups * sum(sizes)).reshape(num_groups, -1)
    return [part.reshape(-1) for part in np.split(rows, np.cumsum(sizes)[:-1], axis=1)]
