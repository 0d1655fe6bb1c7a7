"""The gated delta rule over many sequences' states: the plugin's operation, which Python has no name for.

Does: have the runtime make that operation, and connect it. Does not: own states (the engine's runner does), or project and
convolve (families do). Used while a graph is built, and when a kept one is read.

The runtime recognises the rule where it is written as a loop over tokens, and where an attention operation is beside it puts
the operation for paged states in the loop's place. So a small graph with such a loop is transformed, and its operation taken
over with other inputs. What is recognised is OpenVINO 2026.4's; tests/models hold it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from dragoman.models.blocks.nodes import add, gather_rows, integers, multiply, reshape, scalar, unsqueeze
from dragoman.models.facts import DeltaFacts
from dragoman.models.storage.constants import Node

OPERATION = "PagedGatedDeltaNet"
STATE_INPUTS = ("state_blocks", "state_blocks_begins", "state_interval")

_EPSILON = 1e-6  # of the normalisation of keys and queries
_TIME_AXIS = 2


def gated_delta(rows: list[Node], state: Any, tables: list[Node], facts: DeltaFacts) -> Node:
    """What the heads read from their states, which it brings up to date.

    `rows`: queries, keys [T, key heads, size], values [T, heads, size], the logarithms of what is left of a state, and the
    parts by which it is corrected, both [T, heads]. `state`: the table of states, see `DeltaFacts`. `tables`: where a step's
    sequences begin, then of each sequence the block to read and those to write, where they begin, its past tokens, and after
    how many tokens of a sequence a block is written. -> [T, heads, value size]
    """
    operation = delta_operation(facts)
    inputs = [*rows[:3], state.output(0), *rows[3:], *tables]
    for place, source in enumerate(inputs):
        operation.input(place).replace_source_output(source)
    return operation.output(0)


def delta_operation(facts: DeltaFacts) -> Any:
    """The operation, connected with inputs that mean nothing. Raises: RuntimeError if this runtime does not make one."""
    graph = _looped(facts)
    paged_attention_transformation(graph)
    operation = next((node for node in graph.get_ops() if node.get_type_name() == OPERATION), None)
    if operation is None:
        raise RuntimeError(f"OpenVINO {ov.__version__} does not make {OPERATION} of a loop")
    return operation


def _looped(facts: DeltaFacts) -> Any:
    """A graph of one layer in the form that is recognised: one loop, a state, and an attention that is there to be there."""
    keys, values = (-1, -1, facts.num_heads, facts.key_size), (-1, -1, facts.num_heads, facts.value_size)
    q, k, v = _parameter(keys), _parameter(keys), _parameter(values)
    fade, part = _parameter(keys[:3]), _parameter(keys[:3])
    shape = [1, facts.num_heads, facts.key_size, facts.value_size]
    zeros = ops.constant(np.zeros(shape, dtype=np.float32))
    state = ops.read_value(zeros, "state", ov.Type.f32, ov.PartialShape([-1, *shape[1:]])).output(0)
    size = gather_rows(gather_rows(ops.shape_of(q).output(0), integers(0, 2, 1, 3)), scalar(3, np.int64))
    root = ops.power(ops.convert(size, ov.Type.f32), scalar(0.5)).output(0)  # not recognised as a constant
    normed = [_turned(_normed(x.output(0))) for x in (q, k)]
    sliced = [ops.divide(normed[0], root).output(0), normed[1], *(_turned(x.output(0)) for x in (v, fade, part))]
    read, after = _loop(sliced, state)
    ids = _parameter((-1, -1), ov.Type.i64)
    ids.output(0).set_names({"input_ids"})
    ids.set_friendly_name("input_ids")
    other = _parameter((-1, 1, -1, 8))
    attended = ops.scaled_dot_product_attention(other, other, other).output(0)
    results = [reshape(_turned(read), -1, facts.value_size), after, attended]
    return ov.Model(results, [q, k, v, fade, part, ids, other])


def _loop(sliced: list[Node], state: Node) -> tuple[Node, Node]:
    """(what all tokens read, the state behind the last one). Shapes of `sliced`: [1, heads, T, size] or [1, heads, T]."""
    shape = ops.shape_of(sliced[2]).output(0)
    count = ops.convert(gather_rows(shape, scalar(_TIME_AXIS, np.int64)), ov.Type.i32)
    index = _parameter((), ov.Type.i32)
    one_token = [_parameter((-1, -1, 1, -1)) for _ in range(3)] + [_parameter((-1, -1, 1)) for _ in range(2)]
    before, collected = _parameter((-1, -1, -1, -1)), _parameter((-1, -1, -1, -1))
    axis = scalar(_TIME_AXIS, np.int32)
    q, k, v = (ops.squeeze(token, axis).output(0) for token in one_token[:3])
    fade, part = (token.output(0) for token in one_token[3:])
    faded = multiply(before.output(0), unsqueeze(ops.exp(fade).output(0), -1))
    known = ops.reduce_sum(multiply(faded, unsqueeze(k, -1)), integers(-2), False).output(0)
    correction = multiply(ops.subtract(v, known).output(0), part)
    after = add(faded, multiply(unsqueeze(k, -1), unsqueeze(correction, -2)))
    read = ops.reduce_sum(multiply(after, unsqueeze(q, -1)), integers(-2), True)
    grown = ops.scatter_update(collected, unsqueeze(index.output(0), 0), read, axis).output(0)
    goes_on = ops.constant(np.array([True]))
    loop = ops.loop(count, goes_on)
    body_inputs = [index, *one_token[:3], before, *one_token[3:], collected]
    loop.set_function(ov.Model([ops.constant(np.array([True])).output(0), after, grown], body_inputs))
    for parameter, source in zip(one_token, sliced, strict=True):
        loop.set_sliced_input(parameter, source, 0, 1, 1, -1, _TIME_AXIS)
    loop.set_merged_input(before, state, after)
    loop.set_merged_input(collected, ops.broadcast(scalar(0.0), shape).output(0), grown)
    loop.set_special_body_ports([0, 0])
    return loop.get_iter_value(grown, -1), loop.get_iter_value(after, -1)


def _normed(x: Node) -> Node:
    """x divided by its length along the last axis."""
    length = ops.sqrt(add(ops.reduce_sum(multiply(x, x), integers(-1), True).output(0), scalar(_EPSILON)))
    return multiply(x, ops.divide(scalar(1.0), length).output(0))


def _turned(x: Node) -> Node:
    """Tokens and heads exchanged."""
    order = (0, 2, 1, 3)[: len(x.get_partial_shape())]
    return ops.transpose(x, integers(*order)).output(0)


def _parameter(shape: tuple[int, ...], dtype: Any = ov.Type.f32) -> Any:
    return ops.parameter(ov.PartialShape(list(shape)), dtype)
