"""Qwen 2 to 3.5: Llama with biases on queries, keys and values, or with norms of each head; dense or with experts.

Of Qwen3-Next and 3.5, three of four layers mix tokens by a gated delta rule, the others by gated attention. Sources: their
releases; Gated DeltaNet, arXiv:2412.06464.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, NamedTuple

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
from dragoman.models.facts import AttentionFacts, ConvolutionFacts, DeltaFacts, ExpertFacts, ModelFacts, RoutingRule
from dragoman.models.families.experts import WithExperts, read_experts
from dragoman.models.families.llama import ATTENTION_BIAS, Alternating, Bias, HeadNorms, Llama, no_slides, read_slides
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Qwen2(Llama):
    """Qwen 2 and 2.5. The first `max_window_layers` have no window, the others have one if enabled."""

    qkv_bias: ClassVar[Bias] = True
    output_bias: ClassVar[Bias] = False

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        config.expect(use_mrope=False)
        first = config.count("max_window_layers", config.count("num_hidden_layers"), least=0)
        if config.flag("use_sliding_window") and "sliding_window" in config:
            return read_slides(config, lambda index: index >= first)
        return no_slides(config)


class Qwen3(Qwen2):
    """Qwen 3."""

    head_norms: HeadNorms = "each"
    qkv_bias: ClassVar[Bias] = ATTENTION_BIAS
    output_bias: ClassVar[Bias] = ATTENTION_BIAS


class Qwen3Experts(WithExperts, Qwen3):
    """Qwen 3 30B-A3B, 235B-A22B, Coder."""

    def expert_facts(self, config: Config, index: int) -> ExpertFacts | None:
        """In every `decoder_sparse_step`-th layer but those of `mlp_only_layers`."""
        step, dense = config.count("decoder_sparse_step", 1), config.value("mlp_only_layers", [])
        if not isinstance(dense, list):
            raise config.error("mlp_only_layers", "a list of layers")
        config.rename({"num_local_experts": "num_experts"})  # transformers 5 writes this name
        facts = read_experts(config, RoutingRule(is_normalized=config.flag("norm_topk_prob")))
        return None if index in dense or (index + 1) % step else facts


class WithSharedExpert(Qwen3Experts):
    """With an expert that every token takes, as much as a gate of its own says."""

    shared_name = "shared_expert"

    def expert_facts(self, config: Config, index: int) -> ExpertFacts | None:
        facts = super().expert_facts(config, index)
        shared_size = config.count("shared_expert_intermediate_size")
        return None if facts is None else replace(facts, shared_size=shared_size)

    def shared(self, x: Node, weights: Weights, facts: ExpertFacts) -> Node:
        gate = ops.sigmoid(linear(x, weights.at("shared_expert_gate"), 1)).output(0)
        return multiply(super().shared(x, weights, facts), gate)


class Qwen2Experts(WithSharedExpert):
    """Qwen 1.5 MoE and Qwen 2 57B-A14B: with a gated expert that every token uses."""

    qkv_bias, output_bias = Qwen2.qkv_bias, Qwen2.output_bias
    head_norms = ""

    def __init__(self, config: Config) -> None:
        config.expect(qkv_bias=True)
        super().__init__(config)


_LAYER_TYPES = ("linear_attention", "full_attention")


class DeltaWeights(NamedTuple):
    """The matrices of a gated delta rule: to queries, keys and values below each other; the gate; parts; fades."""

    mixed: Weights
    gate: Weights
    parts: Weights
    fades: Weights


class Qwen35(Alternating):
    """Qwen 3.5 of 0.8B to 27B."""

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

    delta_weights = Qwen35.delta_weights

    def __init__(self, config: Config) -> None:
        config.expect(norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])
        super().__init__(config)


def _parts(num_groups: int, sizes: tuple[int, ...]) -> list[Array]:
    rows = np.arange(num_groups * sum(sizes)).reshape(num_groups, -1)
    return [part.reshape(-1) for part in np.split(rows, np.cumsum(sizes)[:-1], axis=1)]
