"""Mamba 2: selective scans alone, without attention, MLPs or positions. Source: arXiv:2405.21060."""

from __future__ import annotations

from dragoman.models.blocks.nodes import add
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import NO_MLP, LayerFacts
from dragoman.models.families.base import Family, Layout
from dragoman.models.families.scans import ScanKeys, read_scan, scanned
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

_KEYS = ScanKeys(
    "num_heads", "head_dim", "n_groups", "state_size", "conv_kernel", "expand", "use_conv_bias", "use_bias", "use_bias",
    "chunk_size",
)  # fmt: skip
LONGEST = 1 << 20
"""The context of models without a limit, whose states take no more memory for more tokens."""


class Mamba2(Family):
    """Mamba 2 of 130M to 2.7B, Codestral Mamba."""

    architectures = ("Mamba2ForCausalLM",)
    layouts = (Layout("backbone", "lm_head"),)
    table = "embeddings"
    final_norm = "norm_f"

    def __init__(self, config: Config) -> None:
        config.skip("residual_in_fp32", "rescale_prenorm_residual", "norm_before_gate", "rms_norm")
        config.skip("time_step_min", "time_step_max", "time_step_floor", "max_position_embeddings")
        config.skip("time_step_init_scheme", "time_step_scale", "intermediate_size")
        self.is_tied = config.flag("tie_word_embeddings", self.is_tied)
        self.norm_epsilon = config.positive("layer_norm_epsilon", 1e-5)
        self.scan = read_scan(config, self.norm_epsilon, _KEYS)
        layers = (LayerFacts(self.scan.facts, NO_MLP),) * config.count("num_hidden_layers")
        self.facts = self.read_ends(config, layers, LONGEST)

    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        normed = self.norm(x, weights.at("norm"))
        return add(layer.keep(x), scanned(normed, weights.at("mixer"), layer, self.scan))
