"""Bamba: most layers scan, a few attend and turn half of each head. Source: the Bamba release."""

from __future__ import annotations

from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import ModelFacts
from dragoman.models.families.llama import Alternating, LayerNorms
from dragoman.models.families.scans import ScanKeys, read_scan, scanned
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Bamba(Alternating):
    """Bamba 9B, 1 and 2."""

    architectures = ("BambaForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    layer_norms = LayerNorms("input_layernorm", "pre_ff_layernorm")
    final_norm = "final_layernorm"
    mlp_name = "feed_forward"
    rotary_part = 0.5

    def __init__(self, config: Config) -> None:
        config.skip("num_logits_to_keep", "z_loss_coefficient", "attn_rotary_emb", "layers_block_type", "layer_types")
        super().__init__(config)

    def read_facts(self, config: Config) -> ModelFacts:
        num_layers = config.count("num_hidden_layers")
        indices = config.value("attn_layer_indices", [])
        if not isinstance(indices, list) or any(index not in range(num_layers) for index in indices):
            raise config.error("attn_layer_indices", f"a list of layers, 0 to {num_layers - 1}")
        self.attends = tuple(index in indices for index in range(num_layers))
        self.scan = read_scan(config, self.norm_epsilon, ScanKeys())
        self.other = self.scan.facts
        return super().read_facts(config)

    def mix_otherwise(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        return scanned(x, weights.at("mamba"), layer, self.scan)
