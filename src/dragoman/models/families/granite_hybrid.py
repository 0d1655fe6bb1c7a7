"""Granite 4: most layers scan, a few attend, positions are told or not; with experts or without."""

from __future__ import annotations

from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, ExpertFacts, MlpFacts, ModelFacts, ScanFacts
from dragoman.models.families.granite_experts import GraniteExperts, GraniteSharedExperts
from dragoman.models.families.llama import Llama
from dragoman.models.families.scans import ScanKeys, read_scan, scanned
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

_KEYS = ScanKeys()
_SCANS = ("mamba", "linear_attention")


class GraniteHybrid(GraniteSharedExperts):
    """Granite 4.0 of 350M to Small."""

    architectures = ("GraniteMoeHybridForCausalLM",)

    def __init__(self, config: Config) -> None:
        config.expect(normalization_function="rmsnorm")
        config.skip("init_method", "num_experts_per_tok")
        self.turns = config.choice("position_embedding_type", ("rope", "nope"), "nope") == "rope"
        super(GraniteExperts, self).__init__(config)  # of which all turn

    def read_facts(self, config: Config) -> ModelFacts:
        num_layers = config.count("num_hidden_layers")
        kinds = config.choices("layer_types", (*_SCANS, "attention", "full_attention"), num_layers)
        if kinds is None:
            raise config.error("layer_types", f"a list of {num_layers} of: mamba, attention")
        self.scans = tuple(kind in _SCANS for kind in kinds)
        if any(self.scans):
            self.scan = read_scan(config, self.norm_epsilon, _KEYS)
        else:
            _KEYS.skip(config)
        return super().read_facts(config)

    def mixer_facts(self, config: Config, index: int) -> AttentionFacts | ScanFacts:
        return self.scan.facts if self.scans[index] else self.attention_facts(config, index)

    def is_turned(self, index: int) -> bool:
        return self.turns

    def mlp_facts(self, config: Config, index: int) -> MlpFacts | ExpertFacts:
        if config.count("num_local_experts", 8, least=0):
            return super().mlp_facts(config, index)
        config.skip("intermediate_size")
        return MlpFacts(config.count("shared_intermediate_size"), config.choice("hidden_act", ACTIVATIONS, "silu"))

    def mix(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        if self.scans[layer.index]:
            return scanned(x, weights.at("mamba"), layer, self.scan)
        return super().mix(x, weights, layer)

    def mlp(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        if isinstance(self.facts.layers[layer.index].mlp, MlpFacts):
            return Llama.mlp(self, x, weights.at(self.shared_name), layer)
        return super().mlp(x, weights, layer)
