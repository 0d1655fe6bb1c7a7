"""Llama 4 (text): experts whose input is scaled, layers without rotation, in a context of one chunk of attention.

Layers that rotate see a chunk of 8,192 tokens. Only the first one is computed: the context ends with it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.attention import HeadNorm
from dragoman.models.blocks.mlp import Routing, evaluate_experts, route
from dragoman.models.blocks.nodes import add, integers, multiply, reshape, scalar, unsqueeze, width
from dragoman.models.blocks.norms import rms_normalized
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, ExpertFacts, MlpFacts, ModelFacts, QueryGrowth, RoutingRule
from dragoman.models.families.experts import WithExperts, read_experts
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

_KINDS = ("full_attention", "chunked_attention")


class Llama4(WithExperts):
    """Llama 4 Scout, Maverick and Guard, MobileLLM-R1: only texts, in a context of one attention chunk (8,192 tokens)."""

    epsilon = ("rms_norm_eps", 1e-5)
    mlp_name = "feed_forward"
    router_name = "router"
    shared_name = "shared_expert"
    are_turned = True
    has_interleaved_pairs = True

    def __init__(self, config: Config) -> None:
        config.skip("for_llm_compressor")
        config.assume(rope_theta=500_000.0)
        num_layers = config.count("num_hidden_layers")
        self.norms_turned = config.flag("use_qk_norm", True)
        every = config.count("no_rope_layer_interval", 4)
        self.turns = _flags(config, "no_rope_layers", num_layers) or [(i + 1) % every != 0 for i in range(num_layers)]
        self.chunk = config.count("attention_chunk_size") if "attention_chunk_size" in config else 0
        kinds = config.choices("layer_types", _KINDS, num_layers)
        self.has_chunks = bool(self.chunk) and (_KINDS[1] in kinds if kinds else any(self.turns))
        growth = QueryGrowth(config.count("floor_scale", 8192), config.number("attn_scale", 0.1), first=1)
        self.growth = growth if config.value("attn_temperature_tuning", True) else None
        self.expert_layers = self._expert_layers(config, num_layers)
        super().__init__(config)

    # --- config.json --------------------------------------------------------------------------------------------------

    def _expert_layers(self, config: Config, num_layers: int) -> list[int]:
        step = config.count("interleave_moe_layer_step", 1, least=0)  # 0 = no layer has experts
        layers = config.value("moe_layers", list(range(step - 1, num_layers, step)) if step else [])
        if not isinstance(layers, list) or not all(isinstance(layer, int) for layer in layers):
            raise config.error("moe_layers", "a list of layers")
        return layers

    def read_facts(self, config: Config) -> ModelFacts:
        facts = super().read_facts(config)
        return replace(facts, max_position=min(facts.max_position, self.chunk)) if self.has_chunks else facts

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        facts = super().attention_facts(config, index)
        return facts if self.is_turned(index) else replace(facts, growth=self.growth)

    def is_turned(self, index: int) -> bool:
        return self.turns[index]

    def expert_facts(self, config: Config, index: int) -> ExpertFacts | None:
        if not self.expert_layers:
            config.skip("num_local_experts", "num_experts_per_tok")
            return None
        rule, shared_size = RoutingRule("sigmoid"), config.count("intermediate_size")
        size = "intermediate_size"
        facts = read_experts(config, rule, "num_local_experts", size, default=16, shared_size=shared_size)
        return facts if index in self.expert_layers else None

    def mlp_facts(self, config: Config, index: int) -> MlpFacts | ExpertFacts:
        inner_size, facts = config.count("intermediate_size_mlp", 16_384), super().mlp_facts(config, index)
        return facts if isinstance(facts, ExpertFacts) else replace(facts, inner_size=inner_size)

    # --- the graph ----------------------------------------------------------------------------------------------------

    def norms_of_turned(self, weights: Weights, layer: LayerInputs) -> tuple[HeadNorm, HeadNorm] | None:
        return (self._unit, self._unit) if self.norms_turned and self.turns[layer.index] else None

    def _unit(self, heads: Node) -> Node:
        return rms_normalized(heads, np.ones(width(heads), np.float32), self.norm_epsilon)

    def mlp(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """Experts take what their scores have scaled, each a row of its own."""
        facts = self.facts.layers[layer.index].mlp
        if isinstance(facts, MlpFacts):
            return super().mlp(x, weights, layer)
        chosen, shares = route(x, weights.at(self.router_name), facts)
        size = width(x)
        rows = reshape(multiply(x, unsqueeze(shares, 2)), -1, 1, size)
        one_each = reshape(chosen, -1, 1)
        wholly = ops.broadcast(scalar(1.0), ops.shape_of(one_each, "i64")).output(0)
        routed = evaluate_experts(rows, Routing(one_each, wholly), self.expert_weights(weights, facts), facts)
        by_token = reshape(routed, -1, facts.num_active, size)
        return add(ops.reduce_sum(by_token, integers(1), True).output(0), self.shared(x, weights, facts))


def _flags(config: Config, key: str, length: int) -> list[bool]:
    """A list of zeros and ones, which may be longer than asked for; empty if there is none."""
    found = config.value(key, [])
    if found == []:
        return []
    if not isinstance(found, list) or len(found) < length or any(flag not in (0, 1) for flag in found):
        raise config.error(key, f"at least {length} zeros and ones")
    return [flag == 1 for flag in found[:length]]
