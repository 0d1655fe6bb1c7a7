"""Selective scans by channels (Mamba 1), as layers of several families have them. Source: Mamba, arXiv:2312.00752."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dragoman.models.blocks.linear import linear, linears
from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import multiply, split
from dragoman.models.blocks.recurrence import channel_scan, convolve
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import ChannelScanFacts, ConvolutionFacts
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

PartNorm = Callable[[Node, str], Node]
"""The norm of what makes steps ("dt"), keys ("b") or queries ("c")."""


@dataclass(frozen=True)
class ChannelScan:
    """A layer: what it is, the numbers that steps are made of, and which parts have a bias (`bias`: projections)."""

    facts: ChannelScanFacts
    step_rank: int
    convolution_bias: bool
    bias: bool


@dataclass(frozen=True)
class ChannelScanKeys:
    state: str = "mamba_d_state"
    length: str = "mamba_d_conv"
    expansion: str = "mamba_expand"
    step_rank: str = "mamba_dt_rank"
    convolution_bias: str = "mamba_conv_bias"
    bias: str = "mamba_proj_bias"


def read_channel_scan(config: Config, keys: ChannelScanKeys) -> ChannelScan:
    hidden_size = config.count("hidden_size")
    width = int(config.number(keys.expansion, 2) * hidden_size)
    rank = -(-hidden_size // 16)
    if config.value(keys.step_rank, "auto") != "auto":
        rank = config.count(keys.step_rank)
    convolution = ConvolutionFacts(width, config.count(keys.length, 4, least=2))
    facts = ChannelScanFacts(width, config.count(keys.state, 16), convolution)
    return ChannelScan(facts, rank, config.flag(keys.convolution_bias, True), config.flag(keys.bias))


def scanned_by_channel(x: Node, weights: Weights, layer: LayerInputs, scan: ChannelScan, norm: PartNorm) -> Node:
    """Shapes: [T, 1, hidden] -> the same, of the rows that the layer keeps."""
    width, state_size, rank = scan.facts.width, scan.facts.state_size, scan.step_rank
    halves = [weights.at("in_proj").rows(slice(first, first + width), 2 * width) for first in (0, width)]
    inner, gate = linears(x, halves, [width, width], bias=scan.bias, is_fused=True)
    inner = convolve(inner, weights.at("conv1d"), layer, bias=scan.convolution_bias, has_silu=True)
    parts = split(linear(inner, weights.at("x_proj"), rank + 2 * state_size), [rank, state_size, state_size])
    steps, keys, queries = (norm(part, name) for part, name in zip(parts, ("dt", "b", "c"), strict=True))
    steps = linear(steps, weights.at("dt_proj"), width)
    biases = weights.at("dt_proj").vector(width, "bias")
    read = layer.keep(channel_scan([inner, steps, keys, queries], biases, weights, layer))
    gated = multiply(read, ACTIVATIONS["silu"](layer.keep(gate)))
    return linear(gated, weights.at("out_proj"), layer.step.facts.hidden_size, bias=scan.bias)
