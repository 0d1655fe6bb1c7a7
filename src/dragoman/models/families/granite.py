"""Granite 3: Llama with multipliers on embeddings, scores, residuals and logits; dense or with experts.

In Granite 4 most layers scan, a few attend, and positions are told or not.
"""

from __future__ import annotations

from dataclasses import replace

from dragoman.models.blocks.mlp import ACTIVATIONS, ExpertWeights
from dragoman.models.blocks.nodes import add, scaled
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, ExpertFacts, MlpFacts, ModelFacts, RoutingRule
from dragoman.models.families.experts import WithExperts, read_experts, stacked_experts
from dragoman.models.families.llama import Alternating, Llama
from dragoman.models.families.scans import ScanKeys, read_scan, scanned
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Granite(Llama):
    """Granite 3."""

    def __init__(self, config: Config) -> None:
        self.embedding_factor = config.number("embedding_multiplier", 1.0)
        self.residual_scale = config.number("residual_multiplier", 1.0)
        self.logits_factor = 1.0 / config.positive("logits_scaling", 1.0)
        super().__init__(config)

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        return replace(super().attention_facts(config, index), scale=config.number("attention_multiplier", 1.0))

    def residual(self, x: Node, change: Node) -> Node:
        return add(x, scaled(change, self.residual_scale))


class GraniteExperts(WithExperts, Granite):
    """Granite 3 1B-A400M, 3B-A800M; PowerMoE."""

    mlp_name = ""
    router_name = "block_sparse_moe.router.layer"

    def __init__(self, config: Config) -> None:
        config.expect(position_embedding_type="rope")
        super().__init__(config)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts:
        return read_experts(config, RoutingRule(score="chosen"), "num_local_experts", "intermediate_size")

    def expert_weights(self, weights: Weights, facts: ExpertFacts) -> list[ExpertWeights]:
        experts = weights.at("block_sparse_moe")
        return stacked_experts(experts.at("input_linear"), experts.at("output_linear"), facts)


class GraniteSharedExperts(GraniteExperts):
    """Granite 3 MoE with an expert that every token uses."""

    shared_name = "shared_mlp"
    mlp_names = ("input_linear", "output_linear")

    def expert_facts(self, config: Config, index: int) -> ExpertFacts:
        shared_size = config.count("shared_intermediate_size", 0, least=0)
        return replace(super().expert_facts(config, index), shared_size=shared_size)


_KEYS = ScanKeys()
_SCANS = ("mamba", "linear_attention")


class GraniteHybrid(Alternating, GraniteSharedExperts):
    """Granite 4.0 of 350M to Small."""

    def __init__(self, config: Config) -> None:
        config.expect(normalization_function="rmsnorm")
        config.skip("init_method", "num_experts_per_tok")
        self.turns = config.choice("position_embedding_type", ("rope", "nope"), "nope") == "rope"
        super(GraniteExperts, self).__init__(config)  # not GraniteExperts', which requires rotation

    def read_facts(self, config: Config) -> ModelFacts:
        num_layers = config.count("num_hidden_layers")
        kinds = config.choices("layer_types", (*_SCANS, "attention", "full_attention"), num_layers)
        if kinds is None:
            raise config.error("layer_types", f"a list of {num_layers} of: mamba, attention")
        self.attends = tuple(kind not in _SCANS for kind in kinds)
        if all(self.attends):
            _KEYS.skip(config)
        else:
            self.scan = read_scan(config, self.norm_epsilon, _KEYS)
            self.other = self.scan.facts
        return super().read_facts(config)

    def is_turned(self, index: int) -> bool:
        return self.turns

    def mlp_facts(self, config: Config, index: int) -> MlpFacts | ExpertFacts:
        if config.count("num_local_experts", 8, least=0):
            return super().mlp_facts(config, index)
        config.skip("intermediate_size")
        return MlpFacts(config.count("shared_intermediate_size"), config.choice("hidden_act", ACTIVATIONS, "silu"))

    def mix_otherwise(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        return scanned(x, weights.at("mamba"), layer, self.scan)

    def mlp(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        if isinstance(self.facts.layers[layer.index].mlp, MlpFacts):
            return Llama.mlp(self, x, weights.at(self.shared_name), layer)
        return super().mlp(x, weights, layer)
