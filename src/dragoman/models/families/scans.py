"""Selective scans as layers of several families have them: by heads (Mamba 2), and by channels (Mamba 1).

Sources: arXiv:2405.21060; arXiv:2312.00752.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from dragoman.models.blocks.linear import linear, linears
from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import multiply, reshape, split
from dragoman.models.blocks.norms import rms_normalized
from dragoman.models.blocks.recurrence import channel_scan, convolve, head_scan
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import ChannelScanFacts, ConvolutionFacts, ScanFacts
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node, constant
from dragoman.models.weights import Weights


@dataclass(frozen=True)
class ScanKeys:
    """The keys of config.json. `bias`: of projections, `out_bias`: of the output's."""

    heads: str = "mamba_n_heads"
    head_size: str = "mamba_d_head"
    groups: str = "mamba_n_groups"
    state: str = "mamba_d_state"
    length: str = "mamba_d_conv"
    expansion: str = "mamba_expand"
    convolution_bias: str = "mamba_conv_bias"
    bias: str = "mamba_proj_bias"
    out_bias: str = "mamba_proj_bias"
    chunk: str = "mamba_chunk_size"

    def skip(self, config: Config) -> None:
        config.skip(*{getattr(self, field.name) for field in fields(self)}, "time_step_limit")


@dataclass(frozen=True)
class Scan:
    """A layer: what it is, and how its parts are stored. `has_norm`: what heads read is normed; `norms_first`: ungated."""

    facts: ScanFacts
    convolution_bias: bool
    bias: bool
    out_bias: bool
    epsilon: float
    has_norm: bool = True
    norms_first: bool = False


def read_scan(
    config: Config, epsilon: float, keys: ScanKeys, *, inner_width: int | None = None, activation: str = "hidden_act"
) -> Scan:
    """`inner_width` None = as the expansion says. Raises: ModelError."""
    config.skip(keys.chunk, keys.expansion, "time_step_rank")
    config.choice(activation, ("silu", "swish"), "silu")
    num_heads, num_groups = config.count(keys.heads), config.count(keys.groups, 1)
    if num_heads % num_groups:
        raise config.error(keys.groups, f"what divides {keys.heads} {num_heads}")
    if inner_width is None:
        inner_width = int(config.number(keys.expansion, 2) * config.count("hidden_size"))
    is_automatic = config.value(keys.head_size, "auto") == "auto"
    head_size = max(inner_width // num_heads, 1) if is_automatic else config.count(keys.head_size)
    if num_heads * head_size != inner_width:
        raise config.error(keys.heads, f"{inner_width} divided by {keys.head_size} {head_size}")
    state = config.count(keys.state, 128)
    width = inner_width + 2 * num_groups * state
    convolution = ConvolutionFacts(width, config.count(keys.length, 4, least=2))
    facts = ScanFacts(num_groups, num_heads, head_size, state, read_step_limits(config), convolution)
    biases = config.flag(keys.convolution_bias, True), config.flag(keys.bias), config.flag(keys.out_bias)
    return Scan(facts, *biases, epsilon)


def read_step_limits(config: Config) -> tuple[float, float]:
    limits = config.value("time_step_limit", [0.0, float("inf")])
    if isinstance(limits, list) and len(limits) == 2:  # some write infinity as a word, or as {"__float__": "Infinity"}
        numbers = [each.get("__float__", "") if isinstance(each, dict) else each for each in limits]
        try:
            lowest, highest = (float(each) for each in numbers)
        except (TypeError, ValueError):
            pass
        else:
            if 0 <= lowest < highest:
                return lowest, highest
    raise config.error("time_step_limit", "two numbers, the second one larger")


def scanned(x: Node, weights: Weights, layer: LayerInputs, scan: Scan, factors: tuple[float, ...] = (1.0,) * 5) -> Node:
    """Shapes: [T, 1, hidden] -> the same, of the rows that the layer keeps.

    `factors`: of the gate, of values, keys and queries, and of steps.
    """
    facts, hidden_size = scan.facts, layer.step.facts.hidden_size
    inner, mixed_width = facts.inner_width, facts.convolution.width
    widths, total = [inner, mixed_width, facts.num_heads], inner + mixed_width + facts.num_heads
    ends = np.cumsum([0, *widths])
    matrices = [weights.at("in_proj").rows(slice(ends[i], ends[i + 1]), total) for i in range(3)]
    gate, mixed, steps = linears(x, matrices, widths, bias=scan.bias, is_fused=True)
    if set(factors) != {1.0}:
        sizes = (inner, facts.num_groups * facts.state_size, facts.num_groups * facts.state_size)
        gate, steps = (multiply(each, _row([factor])) for each, factor in ((gate, factors[0]), (steps, factors[4])))
        mixed = multiply(mixed, _row(np.repeat(factors[1:4], sizes)))
    mixed = convolve(mixed, weights.at("conv1d"), layer, bias=scan.convolution_bias, has_silu=True)
    read = layer.keep(reshape(head_scan(mixed, steps, weights, layer, facts), -1, 1, inner))
    gate = ACTIVATIONS["silu"](layer.keep(gate))
    if not scan.has_norm:
        out = multiply(read, gate)
    elif scan.norms_first:
        out = multiply(_group_norm(read, weights.at("norm"), scan), gate)
    else:
        out = _group_norm(multiply(read, gate), weights.at("norm"), scan)
    return linear(out, weights.at("out_proj"), hidden_size, bias=scan.out_bias)


def _group_norm(x: Node, weights: Weights, scan: Scan) -> Node:
    facts = scan.facts
    weight, groups = weights.vector(facts.inner_width), facts.num_groups
    if groups == 1:
        return rms_normalized(x, weight, scan.epsilon)
    size = facts.inner_width // groups
    normed = rms_normalized(reshape(x, -1, groups, size), np.ones(size, np.float32), scan.epsilon)
    return multiply(reshape(normed, -1, 1, facts.inner_width), _row(weight))


def _row(values: Array | list[float]) -> Node:
    return constant(np.asarray(values, np.float32).reshape(1, 1, -1))


PartNorm = Callable[[Node, str], Node]
"""The norm of what makes steps ("dt"), keys ("b") or queries ("c")."""


@dataclass(frozen=True)
class ChannelScan:
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
