"""Layers that keep a state from token to token: connects the library's operations with rows, constants and blocks.

Families project, norm and gate.
"""

from __future__ import annotations

import numpy as np

from dragoman.kernels import graph as kernels
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import ModelError
from dragoman.models.facts import ChannelScanFacts, DeltaFacts, GatedRecurrenceFacts, ScanFacts
from dragoman.models.sources.base import Array, PackedMatrix
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


def convolve(x: Node, weights: Weights, layer: LayerInputs, *, bias: bool = False, has_silu: bool = False) -> Node:
    """The layer's causal convolution of each channel, [T, 1, width]. `weights`: stored [width, 1, length]."""
    facts = layer.step.facts.convolution_layers[layer.index]
    taps = weights.tensor((facts.width, 1, facts.length))
    if isinstance(taps, PackedMatrix):
        raise ModelError("the weights of a convolution are packed, allowed: plain numbers")
    shift = weights.vector(facts.width, "bias") if bias else None
    taps = taps.reshape(facts.width, facts.length)
    kept, num_slots = layer.kept_rows(facts)
    convolved: Node = kernels.convolution(x, taps, shift, kept, num_slots, has_silu=has_silu)
    return convolved


def gated_delta(mixed: Node, steps: Node, parts: Node, weights: Weights, layer: LayerInputs) -> Node:
    """The heads' output by a gated delta rule. `weights`: of the rates at which states fade.

    Shapes: mixed [T, 1, queries, keys and values], steps and parts [T, 1, heads] -> [T, heads, value size].
    """
    facts = layer.step.facts.recurrent_layers[layer.index]
    assert isinstance(facts, DeltaFacts)
    sizes = (facts.num_key_heads, facts.num_heads, facts.key_size, facts.value_size)
    numbers, kept = _head_rates(weights, facts.num_heads), layer.kept_state(facts.state_shape)
    read: Node = kernels.heads([mixed, steps, parts], kept, sizes, numbers, corrects=True)
    return read


def head_scan(mixed: Node, steps: Node, weights: Weights, layer: LayerInputs, facts: ScanFacts) -> Node:
    """The heads' output by a selective scan. `weights`: of rates, biases of steps, and skips.

    Shapes: mixed [T, 1, values, keys and queries], steps [T, 1, heads] -> [T, heads, head size].
    """
    sizes = (facts.num_groups, facts.num_heads, facts.state_size, facts.head_size)
    numbers = (*_head_rates(weights, facts.num_heads), weights.vector(facts.num_heads, "D"))
    kept = layer.kept_state(facts.state_shape)
    read: Node = kernels.heads([mixed, steps], kept, sizes, numbers, facts.step_limits, corrects=False)
    return read


def channel_scan(rows: list[Node], biases: Array, weights: Weights, layer: LayerInputs) -> Node:
    """The channels' output by a selective scan, [T, 1, width]. `rows`: x, steps, keys, queries, see `kernels.channels`.

    `weights`: of rates and skips; `biases`: of steps, f32 [width].
    """
    facts = layer.step.facts.recurrent_layers[layer.index]
    assert isinstance(facts, ChannelScanFacts)
    rates = -np.exp(_numbers(weights, (facts.width, facts.state_size), "A_log")).T
    skips, kept = weights.vector(facts.width, "D"), layer.kept_state(facts.state_shape)
    read: Node = kernels.channels(rows, kept, rates, biases, skips)
    return read


def gated_recurrence(rows: list[Node], rates: Array, layer: LayerInputs) -> Node:
    """The states of the channels, [T, 1, width]. `rows`: x and two kinds of gates, see `kernels.gates`."""
    facts = layer.step.facts.recurrent_layers[layer.index]
    assert isinstance(facts, GatedRecurrenceFacts)
    read: Node = kernels.gates(rows, layer.kept_state(facts.state_shape), rates)
    return read


def _head_rates(weights: Weights, num_heads: int) -> tuple[Array, Array]:
    return -np.exp(weights.vector(num_heads, "A_log")), weights.vector(num_heads, "dt_bias")


def _numbers(weights: Weights, shape: tuple[int, ...], name: str) -> Array:
    tensor = weights.tensor(shape, name)
    if isinstance(tensor, PackedMatrix):
        raise ModelError(f"{name} is packed, allowed: numbers")
    return tensor.astype(np.float32)
