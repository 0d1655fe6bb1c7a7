"""Short names for the runtime's operations, with the constants that they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models.storage.constants import Node


def parameter(name: str, *shape: int, dtype: Any = ov.Type.f32) -> Any:
    """An input of a graph; -1 = any size. Its only output is the node."""
    made = ops.parameter(ov.PartialShape(list(shape)), dtype, name=name)
    made.output(0).set_names({name})
    return made


def marked(x: Node, mark: str, value: str = "") -> Node:
    """x itself, whose node now has a mark by which `fusing` knows what it is."""
    x.get_node().get_rt_info()[mark] = value
    return x


def mark_of(x: Node, mark: str) -> str | None:
    """The text told with that mark, None if the node has none."""
    info = x.get_node().get_rt_info()
    return str(info[mark].astype(str)) if mark in info else None


def scalar(value: float, dtype: type = np.float32) -> Node:
    return ops.constant(np.array(value, dtype=dtype)).output(0)


def integers(*values: int) -> Node:
    return ops.constant(np.array(values, dtype=np.int64)).output(0)


def width(x: Node) -> int:
    return int(x.get_partial_shape()[-1].get_length())


def reshape(x: Node, *shape: int) -> Node:
    """x in another shape; -1 = what is left."""
    return ops.reshape(x, integers(*shape), special_zero=False).output(0)


def add(x: Node, y: Node) -> Node:
    return ops.add(x, y).output(0)


def multiply(x: Node, y: Node) -> Node:
    return ops.multiply(x, y).output(0)


def scaled(x: Node, factor: float) -> Node:
    """x times a number; x itself if that is 1."""
    return x if factor == 1.0 else multiply(x, scalar(factor))


def gather_rows(x: Node, rows: Node) -> Node:
    """Shapes: x [T, ...], rows i64 [R] -> [R, ...]."""
    return ops.gather(x, rows, scalar(0, np.int64)).output(0)


def unsqueeze(x: Node, *axes: int) -> Node:
    return ops.unsqueeze(x, integers(*axes)).output(0)


def concat(parts: Sequence[Node]) -> Node:
    return parts[0] if len(parts) == 1 else ops.concat(list(parts), axis=-1).output(0)


def columns(x: Node, start: int, stop: int) -> Node:
    """A part of the last axis. A Slice, not a split: only this form is recognised as rotary embedding."""
    axis = len(x.get_partial_shape()) - 1
    return ops.slice(x, *(integers(value) for value in (start, stop, 1, axis))).output(0)


def split(x: Node, widths: Sequence[int]) -> list[Node]:
    node = ops.variadic_split(x, scalar(-1, np.int64), integers(*widths))
    return [node.output(i) for i in range(len(widths))]


def split_heads(x: Node, num_heads: int) -> Node:
    """[T, 1, heads * size] -> [T, heads, 1, size]; with one position per token no value moves."""
    return reshape(x, -1, num_heads, 1, width(x) // num_heads)


def capped(x: Node, limit: float) -> Node:
    """x bounded smoothly by +-limit; x itself if the limit is 0."""
    return x if not limit else scaled(ops.tanh(scaled(x, 1.0 / limit)).output(0), limit)


def clamped(x: Node, limit: float) -> Node:
    """x cut off at +-limit; x itself if the limit is 0."""
    return x if not limit else ops.clamp(x, -limit, limit).output(0)
