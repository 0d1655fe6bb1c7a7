"""Makes few operations of many: one for the part of a layer before attention, and another for the part behind it.

Each of our nodes costs some microseconds whatever it computes, and the plugin's nodes between them cost as well. What
does not match exactly stays. Called when a graph is whole, on the thread that builds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import openvino as ov

from dragoman.kernels import graph as kernels
from dragoman.models.blocks.matching import inputs_of, integers_in, key, number_in
from dragoman.models.blocks.nodes import reshape
from dragoman.models.blocks.whole_layers import join_layers
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node, WeightStorage, constant

_END = np.iinfo(np.int64).max


def fuse(graph: ov.Model, storage: WeightStorage) -> None:
    """Put fewer operations into the graph, if our kernels compute it and there is no watcher."""
    if not storage.format.is_ours or storage.watcher is not None:
        return
    nodes = graph.get_ordered_ops()
    for node in nodes:
        if node.get_type_name() == "GatedMlp":
            _fuse_mlp(node)
    found = _Found(nodes)
    for node in nodes:
        if node.get_type_name() == "Products" and any(output.get_target_inputs() for output in node.outputs()):
            _fuse_products(node, found)
    join_layers(graph)


# --- norm, products, norms of heads, turning ------------------------------------------------------------------------------


class _Norm(NamedTuple):
    """`end` = x / sqrt(mean(x^2) + epsilon) * weight over the last axis."""

    end: Node
    x: Node
    weight: Array
    epsilon: float


class _Turning(NamedTuple):
    """`end` = the heads x with their first `size` values rotated."""

    end: Node
    x: Node
    angles: tuple[Node, Node]
    size: int


class _Found:
    def __init__(self, nodes: Sequence[Any]) -> None:
        self.norms: dict[tuple[str, int], _Norm] = {}
        self.turnings: dict[tuple[str, int], _Turning] = {}
        for node in nodes:
            end = node.output(0) if node.get_output_size() else None
            if (norm := _norm(end)) is not None:
                self.norms[key(norm.x)] = norm
            elif (turning := _turned(end) or _partly_turned(end)) is not None:
                self.turnings[key(turning.x)] = turning


@dataclass(slots=True)
class _Chain:
    """The nodes behind a product of `width` outputs, up to `end`. `head`: a head's size, 0 = it is not cut into heads."""

    end: Node
    width: int
    norm: _Norm | None = None
    turning: _Turning | None = None
    head: int = 0

    @property
    def shape(self) -> list[int]:
        return [-1, *(int(size.get_length()) for size in list(self.end.get_partial_shape())[1:])]

    def numbers(self) -> list[Array]:
        return [] if self.norm is None else [self.norm.weight]

    def how(self) -> str:
        head = self.head or self.width
        return f"{_said(self.norm)} {head} {0 if self.turning is None else self.turning.size}"


def _fuse_products(node: Any, found: _Found) -> None:
    rows, biases = _parts(node)
    chains = [_followed(output, found) for output in node.outputs()]
    norm = _norm(rows)
    if norm is not None and (_num_consumers(rows) > 1 or len(rows.get_partial_shape()) != 3):
        norm = None
    angles = [chain.turning.angles for chain in chains if chain.turning is not None]
    if any([key(one) for one in pair] != [key(one) for one in angles[0]] for pair in angles):
        return
    if len({chain.turning.size for chain in chains if chain.turning is not None}) > 1:
        return
    if norm is None and not any(chain.norm or chain.turning for chain in chains):
        return
    numbers = [] if norm is None else [norm.weight]
    for index, chain in enumerate(chains):
        numbers += biases[index : index + 1]
        numbers += chain.numbers()
    how = " ".join([_said(norm), str(int(bool(biases))), *(chain.how() for chain in chains)])
    results = kernels.normed_products(
        rows if norm is None else norm.x,
        node.get_attributes()["matrices"],
        how,
        _joined(numbers),
        angles[0] if angles else (),
    )
    for result, chain in zip(results, chains, strict=True):
        chain.end.replace(result if len(chain.shape) == 2 else reshape(result, *chain.shape))


def _followed(output: Node, found: _Found) -> _Chain:
    """The chain that can be computed with a product: a norm, of all heads or of each, then rotation; and reshaping."""
    width = int(output.get_partial_shape()[-1].get_length())
    chain = _Chain(output, width)
    while True:
        norm, turning = found.norms.get(key(chain.end)), found.turnings.get(key(chain.end))
        next_shape = _reshaped(chain.end)
        if norm is not None and chain.norm is None and chain.turning is None and _num_consumers(chain.end) == 2:
            chain.end, chain.norm = norm.end, norm
        elif turning is not None and chain.head and chain.turning is None:
            chain.end, chain.turning = turning.end, turning
        elif next_shape is not None and len(chain.shape) == 3 and _is_by_heads(next_shape, width):
            chain.end, chain.head = _only_reader(chain.end).output(0), next_shape[3]
        elif next_shape == [-1, width]:
            chain.end = _only_reader(chain.end).output(0)
            return chain
        else:
            return chain


def _is_by_heads(shape: list[int], width: int) -> bool:
    return len(shape) == 4 and shape[0] == -1 and shape[2] == 1 and shape[1] * shape[3] == width


# --- output, residual, norm, gated MLP, residual --------------------------------------------------------------------------


@dataclass(slots=True)
class _Change:
    """A residual and what is added to it: `result` = residual + scale * norm(source)."""

    result: Node
    residual: Node
    source: Node
    norm: _Norm | None
    scale: float


def _fuse_mlp(node: Any) -> None:
    inside = node.input_value(0)
    norm = _norm(inside)
    between = inside if norm is None else norm.x
    first, last = _change(between), _last_change(node.output(0), between)
    if first is None or last is None or first.scale != last.scale:
        return
    product = first.source.get_node()
    is_read_elsewhere = _num_consumers(between) != (2 if norm is None else 3) or _num_consumers(inside) > 2
    if product.get_type_name() != "Products" or product.get_output_size() > 1 or is_read_elsewhere:
        return
    attended, output_bias = _parts(product)
    _, mlp_biases = _parts(node)
    norms = [first.norm, norm, last.norm]
    biases = f"{int(bool(output_bias))} {int(bool(mlp_biases))}"
    result = kernels.output_and_mlp(
        _without_axis(attended),
        first.residual,
        f"{product.get_attributes()['matrices']},{node.get_attributes()['matrices']}",
        " ".join([repr(first.scale), biases, *map(_said, norms)]),
        node.get_attributes()["activation"],
        _joined([*output_bias, *mlp_biases, *(one.weight for one in norms if one is not None)]),
    )
    last.result.replace(result)


def _change(result: Node) -> _Change | None:
    parts = inputs_of(result, "Add")
    if parts is None:
        return None
    residual, source = parts
    scale = 1.0
    scaled = inputs_of(source, "Multiply")
    if scaled is not None and (factor := number_in(scaled[1])) is not None:
        source, scale = scaled[0], factor
    norm = _norm(source)
    return _Change(result, residual, source if norm is None else norm.x, norm, scale)


def _last_change(source: Node, residual: Node) -> _Change | None:
    for result in (target.get_node().output(0) for target in residual.get_target_inputs()):
        change = _change(result) if result.get_node().get_type_name() == "Add" else None
        if change is not None and key(change.residual) == key(residual) and key(change.source) == key(source):
            return change
    return None


def _without_axis(x: Node) -> Node:
    """[T, width] if x is that unsqueezed to [T, 1, width], else x."""
    parts = inputs_of(x, "Unsqueeze")
    return x if parts is None or len(parts[0].get_partial_shape()) != 2 else parts[0]


# --- what blocks make -----------------------------------------------------------------------------------------------------


def _norm(end: Node | None) -> _Norm | None:
    """The norm of `norms.rms_normalized` that ends here; the next ones are rotations by `rotary.apply_rotary`."""
    weighted = inputs_of(end, "Multiply")
    scaled = None if weighted is None else inputs_of(weighted[0], "Multiply")
    divided = None if scaled is None else inputs_of(scaled[1], "Divide")
    root = None if divided is None else inputs_of(divided[1], "Sqrt")
    sums = None if root is None else inputs_of(root[0], "Add")
    if weighted is None or scaled is None or divided is None or sums is None or number_in(divided[0]) != 1.0:
        return None
    x, weight = scaled[0], weighted[1]
    mean, epsilon = sums[0], number_in(sums[1])
    squares = inputs_of(mean, "ReduceMean")
    if squares is None or epsilon is None or not mean.get_node().get_attributes()["keep_dims"]:
        return None
    powers = inputs_of(squares[0], "Power")
    if powers is None or key(powers[0]) != key(x) or number_in(powers[1]) != 2.0 or integers_in(squares[1]) != [-1]:
        return None
    size = x.get_partial_shape()[-1]
    if weight.get_node().get_type_name() != "Constant" or size.is_dynamic:
        return None
    numbers = np.asarray(weight.get_node().data)
    if numbers.dtype != np.float32 or numbers.size != int(size.get_length()):
        return None
    return _Norm(end, x, numbers.reshape(-1), epsilon)


def _turned(end: Node | None) -> _Turning | None:
    parts = inputs_of(end, "Add")
    straight, across = (None, None) if parts is None else (inputs_of(part, "Multiply") for part in parts)
    if straight is None or across is None:
        return None
    x, cos = straight
    halves = inputs_of(across[0], "Concat")
    if halves is None or len(halves) != 2:
        return None
    size = x.get_partial_shape()[-1]
    if size.is_dynamic:
        return None
    negative, first = inputs_of(halves[0], "Multiply"), _sliced(halves[1])
    second = None if negative is None else _sliced(negative[0])
    if negative is None or second is None or first is None or number_in(negative[1]) != -1.0:
        return None
    half = int(size.get_length()) // 2
    if key(first[0]) != key(x) or key(second[0]) != key(x) or first[1:] != (0, half) or second[1:] != (half, _END):
        return None
    return _Turning(end, x, (cos, across[1]), 2 * half)


def _partly_turned(end: Node | None) -> _Turning | None:
    parts = inputs_of(end, "Concat")
    turning = None if parts is None or len(parts) != 2 else _turned(parts[0])
    if turning is None or parts is None:
        return None
    first, rest = _sliced(turning.x), _sliced(parts[1])
    if first is None or rest is None or key(first[0]) != key(rest[0]):
        return None
    width = int(first[0].get_partial_shape()[-1].get_length())
    if first[1:] != (0, turning.size) or rest[1:] != (turning.size, width):
        return None
    return turning._replace(end=end, x=first[0])


def _sliced(x: Node) -> tuple[Node, int, int] | None:
    """The node of which x is a slice along the last axis, and the slice's begin and end."""
    parts = inputs_of(x, "Slice")
    if parts is None:
        return None
    start, stop, step, axis = (integers_in(part) for part in parts[1:])
    if step != [1] or axis != [len(x.get_partial_shape()) - 1] or start is None or stop is None:
        return None
    return parts[0], start[0], stop[0]


# --- nodes ----------------------------------------------------------------------------------------------------------------


def _parts(node: Any) -> tuple[Node, list[Array]]:
    rows, *biases = (node.input_value(index) for index in range(node.get_input_size()))
    return rows, [np.asarray(bias.get_node().data) for bias in biases]


def _joined(numbers: Sequence[Array]) -> Node:
    return constant(np.concatenate([np.zeros(0, np.float32), *numbers]).astype(np.float32))


def _said(norm: _Norm | None) -> str:
    return "0 0" if norm is None else f"{len(norm.weight)} {norm.epsilon!r}"


def _num_consumers(x: Node) -> int:
    return len(x.get_target_inputs())


def _only_reader(x: Node) -> Any:
    (target,) = x.get_target_inputs()
    return target.get_node()


def _reshaped(x: Node) -> list[int] | None:
    """The shape into which the only reader of x brings it, None if it does something else."""
    targets = list(x.get_target_inputs())
    if len(targets) != 1 or targets[0].get_node().get_type_name() != "Reshape":
        return None
    return integers_in(targets[0].get_node().input_value(1))
