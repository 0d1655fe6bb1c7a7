"""Jamba: most layers scan each channel, some attend without positions; dense or with experts. Source: arXiv:2403.19887."""

from __future__ import annotations

from dataclasses import replace

from dragoman.models.blocks.linear import linear, linears
from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import multiply, split
from dragoman.models.blocks.recurrence import channel_scan, convolve
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, ChannelScanFacts, ConvolutionFacts, ExpertFacts, ModelFacts
from dragoman.models.families.experts import WithExperts, activation, active_count
from dragoman.models.families.llama import LayerNorms
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Jamba(WithExperts):
    """Jamba 1.5, 1.6, 1.7 and Reasoning 3B."""

    architectures = ("JambaForCausalLM",)
    layer_norms = LayerNorms("input_layernorm", "pre_ff_layernorm")
    mlp_name = "feed_forward"
    router_name = "router"

    def __init__(self, config: Config) -> None:
        config.skip("use_mamba_kernels", "use_mambapy", "use_associative_scan", "num_logits_to_keep", "sliding_window")
        config.skip("calc_logits_for_entire_prompt", "layer_types", "layers_block_type")
        config.expect(mamba_inner_layernorms=True)
        config.assume(max_position_embeddings=262_144)
        super().__init__(config)

    def read_facts(self, config: Config) -> ModelFacts:
        """See `Llama`."""
        hidden_size = config.count("hidden_size")
        width = config.count("mamba_expand", 2) * hidden_size
        self.step_rank = -(-hidden_size // 16)
        if config.value("mamba_dt_rank", "auto") != "auto":
            self.step_rank = config.count("mamba_dt_rank")
        convolution = ConvolutionFacts(width, config.count("mamba_d_conv", 4, least=2))
        self.scan = ChannelScanFacts(width, config.count("mamba_d_state", 16), convolution)
        self.has_convolution_bias = config.flag("mamba_conv_bias", True)
        self.has_scan_bias = config.flag("mamba_proj_bias")
        return super().read_facts(config)

    def mixer_facts(self, config: Config, index: int) -> AttentionFacts | ChannelScanFacts:
        """See `Llama`."""
        period, offset = config.count("attn_layer_period", 8), config.count("attn_layer_offset", 4, least=0)
        return self.attention_facts(config, index) if index % period == offset else self.scan

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        """Positions are not told."""
        return replace(super().attention_facts(config, index), rotary=None)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts | None:
        """See `WithExperts`."""
        num_experts = config.count("num_experts", 16)
        period, offset = config.count("expert_layer_period", 2), config.count("expert_layer_offset", 1, least=0)
        if num_experts == 1:
            config.skip("num_experts_per_tok")
            return None
        active = active_count(config, "num_experts_per_tok", num_experts)
        if index % period != offset:
            return None
        return ExpertFacts(num_experts, active, config.count("intermediate_size"), activation(config))

    def last_norm(self, x: Node, body: Weights) -> Node:
        """See `Family`."""
        return self.norm(x, body.at("final_layernorm"))

    def mix(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """By attention or by a scan."""
        if layer.index in self.facts.recurrent_layers:
            return self._scanned(x, weights.at("mamba"), layer)
        return super().mix(x, weights, layer)

    def _scanned(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """Shapes: [T, 1, hidden] -> the same, of the rows that the layer keeps."""
        width, state_size, rank = self.scan.width, self.scan.state_size, self.step_rank
        halves = [weights.at("in_proj").rows(slice(first, first + width), 2 * width) for first in (0, width)]
        inner, gate = linears(x, halves, [width, width], bias=self.has_scan_bias, is_fused=True)
        inner = convolve(inner, weights.at("conv1d"), layer, bias=self.has_convolution_bias, has_silu=True)
        parts = split(linear(inner, weights.at("x_proj"), rank + 2 * state_size), [rank, state_size, state_size])
        norms = (weights.at(f"{name}_layernorm") for name in ("dt", "b", "c"))
        steps, keys, queries = (self.norm(part, norm) for part, norm in zip(parts, norms, strict=True))
        steps = linear(steps, weights.at("dt_proj"), width)
        biases = weights.at("dt_proj").vector(width, "bias")
        read = layer.keep(channel_scan([inner, steps, keys, queries], biases, weights, layer))
        gated = multiply(read, ACTIVATIONS["silu"](layer.keep(gate)))
        return linear(gated, weights.at("out_proj"), self.facts.hidden_size, bias=self.has_scan_bias)
