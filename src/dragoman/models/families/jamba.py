"""Jamba: most layers scan each channel, some attend without positions; dense or with experts. Source: arXiv:2403.19887."""

from __future__ import annotations

from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts, ModelFacts, RoutingRule
from dragoman.models.families.experts import WithExperts, read_experts
from dragoman.models.families.llama import Alternating, LayerNorms
from dragoman.models.families.scans import ChannelScanKeys, read_channel_scan, scanned_by_channel
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Jamba(Alternating, WithExperts):
    """Jamba 1.5, 1.6, 1.7 and Reasoning 3B."""

    architectures = ("JambaForCausalLM",)
    layer_norms = LayerNorms("input_layernorm", "pre_ff_layernorm")
    final_norm = "final_layernorm"
    mlp_name = "feed_forward"
    router_name = "router"

    def __init__(self, config: Config) -> None:
        config.skip("use_mamba_kernels", "use_mambapy", "use_associative_scan", "num_logits_to_keep", "sliding_window")
        config.skip("calc_logits_for_entire_prompt", "layer_types", "layers_block_type")
        config.expect(mamba_inner_layernorms=True)
        config.assume(max_position_embeddings=262_144)
        super().__init__(config)

    def read_facts(self, config: Config) -> ModelFacts:
        period, offset = config.count("attn_layer_period", 8), config.count("attn_layer_offset", 4, least=0)
        self.attends = tuple(index % period == offset for index in range(config.count("num_hidden_layers")))
        self.scan = read_channel_scan(config, ChannelScanKeys())
        self.other = self.scan.facts
        return super().read_facts(config)

    def is_turned(self, index: int) -> bool:
        return False

    def expert_facts(self, config: Config, index: int) -> ExpertFacts | None:
        period, offset = config.count("expert_layer_period", 2), config.count("expert_layer_offset", 1, least=0)
        if config.count("num_experts", 16) == 1:
            config.skip("num_experts_per_tok")
            return None
        facts = read_experts(config, RoutingRule(), size="intermediate_size", default=16)
        return facts if index % period == offset else None

    def mix_otherwise(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        mamba = weights.at("mamba")
        return scanned_by_channel(
            x, mamba, layer, self.scan, lambda part, name: self.norm(part, mamba.at(f"{name}_layernorm"))
        )
