"""Mamba: selective scans alone, without attention, MLPs or positions. Sources: arXiv:2312.00752; arXiv:2405.21060."""

from __future__ import annotations

import numpy as np

from dragoman.models.blocks.nodes import add, width
from dragoman.models.blocks.norms import rms_normalized
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import NO_MLP, LayerFacts
from dragoman.models.families.base import Family, Layout
from dragoman.models.families.scans import (
    ChannelScanKeys,
    ScanKeys,
    read_channel_scan,
    read_scan,
    scanned,
    scanned_by_channel,
)
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

_HEAD_KEYS = ScanKeys(
    "num_heads", "head_dim", "n_groups", "state_size", "conv_kernel", "expand", "use_conv_bias", "use_bias", "use_bias",
    "chunk_size",
)  # fmt: skip
LONGEST = 1 << 20
"""The context of models without a limit, whose states take no more memory for more tokens."""


class Mamba2(Family):
    """Mamba 2 of 130M to 2.7B, Codestral Mamba."""

    layouts = (Layout("backbone", "lm_head"),)
    table = "embeddings"
    final_norm = "norm_f"

    def __init__(self, config: Config) -> None:
        config.skip("residual_in_fp32", "rescale_prenorm_residual", "norm_before_gate", "rms_norm")
        config.skip("time_step_min", "time_step_max", "time_step_floor", "max_position_embeddings")
        config.skip("time_step_init_scheme", "time_step_scale", "intermediate_size")
        self.is_tied = config.flag("tie_word_embeddings", self.is_tied)
        self.norm_epsilon = config.positive("layer_norm_epsilon", 1e-5)
        self.scan = read_scan(config, self.norm_epsilon, _HEAD_KEYS)
        layers = (LayerFacts(self.scan.facts, NO_MLP),) * config.count("num_hidden_layers")
        self.facts = self.read_ends(config, layers, LONGEST)

    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        normed = self.norm(x, weights.at("norm"))
        return add(layer.keep(x), scanned(normed, weights.at("mixer"), layer, self.scan))


_KEYS = ChannelScanKeys("state_size", "conv_kernel", "expand", "time_step_rank", "use_conv_bias", "use_bias")


class Mamba(Family):
    """Mamba of 130M to 2.8B."""

    layouts = (Layout("backbone", "lm_head"),)
    table = "embeddings"
    final_norm = "norm_f"
    is_tied: bool = True

    def __init__(self, config: Config) -> None:
        config.skip("residual_in_fp32", "rescale_prenorm_residual", "use_mambapy", "use_associative_scan")
        config.skip("time_step_min", "time_step_max", "time_step_floor", "time_step_init_scheme", "time_step_scale")
        config.skip("d_model", "d_inner", "n_layer", "ssm_cfg", "rms_norm", "fused_add_norm", "pad_vocab_size_multiple")
        config.skip("intermediate_size", "layer_types", "max_position_embeddings")
        config.choice("hidden_act", ("silu", "swish"), "silu")
        self.is_tied = config.flag("tie_word_embeddings", self.is_tied)
        self.norm_epsilon = config.positive("layer_norm_epsilon", 1e-5)
        self.scan = read_channel_scan(config, _KEYS)
        layers = (LayerFacts(self.scan.facts, NO_MLP),) * config.count("num_hidden_layers")
        self.facts = self.read_ends(config, layers, LONGEST)

    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        normed = self.norm(x, weights.at("norm"))
        change = scanned_by_channel(normed, weights.at("mixer"), layer, self.scan, self.part_norm)
        return add(layer.keep(x), change)

    def part_norm(self, x: Node, name: str) -> Node:
        return x


class FalconMamba(Mamba):
    """Falcon Mamba 7B, Falcon3 Mamba 7B: inputs of steps, keys and queries are normed, without weights."""

    def __init__(self, config: Config) -> None:
        config.skip("use_falcon_mambapy")
        self.part_epsilon = config.positive("mixer_rms_eps", 1e-6)
        super().__init__(config)

    def part_norm(self, x: Node, name: str) -> Node:
        return rms_normalized(x, np.ones(width(x), np.float32), self.part_epsilon)
