"""Makes few operations of many: one for the part of a layer before attention, another behind it, and one of whole layers.

Each of our nodes costs some microseconds whatever it computes, and the plugin's nodes between them cost as well. What
does not match exactly stays, so bits stay the same. Called when a graph is whole, on the thread that builds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import openvino as ov

from dragoman.kernels import graph as kernels
from dragoman.models.blocks.nodes import mark_of, reshape, width
from dragoman.models.blocks.norms import NORM
from dragoman.models.blocks.rotary import TURNED
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node, WeightStorage, constant


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
            elif (turning := _turning(end)) is not None:
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
    if any([key(angle) for angle in pair] != [key(angle) for angle in angles[0]] for pair in angles):
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
        _joined([*output_bias, *mlp_biases, *(norm.weight for norm in norms if norm is not None)]),
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
    epsilon = None if end is None else mark_of(end, NORM)
    if end is None or epsilon is None:
        return None
    scaled, weight = (end.get_node().input_value(index).get_node() for index in (0, 1))
    return _Norm(end, scaled.input_value(0), np.asarray(weight.data).reshape(-1), float(epsilon))


def _turning(end: Node | None) -> _Turning | None:
    """The rotation that ends here: of a whole head, or of its first part, which then stands beside the rest."""
    if end is None or mark_of(end, TURNED) is None:
        return None
    rest = inputs_of(end, "Concat")
    straight, across = (rest[0] if rest else end).get_node().input_values()
    x, cos = straight.get_node().input_values()
    whole = x.get_node().input_value(0) if rest else x
    return _Turning(end, whole, (cos, across.get_node().input_value(1)), width(x))


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


_QKV, _KEYS, _POSITIONS, _PAST, _BEGINS, _BLOCKS, _BLOCK_BEGINS, _NUMBERS, _TYPES = 3, 3, 5, 6, 7, 8, 9, 10, 11
"""Inputs of attention, as `kernels.graph.attention` has them."""

_READERS = 2
"""The readers of a layer's output: the next one, before attention and as its residual."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer's three operations. `x`: its rows; `rows`: those that it keeps, None = all."""

    x: Node
    before: Any
    attention: Any
    after: Any
    rows: Node | None

    def input(self, index: int) -> Node:
        return self.attention.input_value(index)

    @property
    def tables(self) -> tuple[Node, ...]:
        return self.input(_PAST), self.input(_BLOCKS), self.input(_BLOCK_BEGINS)

    @property
    def angles(self) -> tuple[Node, ...]:
        """cos and sin; none without rotation."""
        return tuple(self.before.input_value(index) for index in range(2, self.before.get_input_size()))

    @property
    def types(self) -> tuple[Node, ...]:
        return tuple(self.input(index) for index in range(_TYPES, self.attention.get_input_size()))


def join_layers(graph: ov.Model) -> None:
    nodes = graph.get_ordered_ops()
    # replaced nodes may still read something, so only the others count
    readers = Counter(key(node.input_value(index)) for node in nodes for index in range(node.get_input_size()))
    ends = [node for node in nodes if node.get_type_name() == "OutputAndMlp"]
    layers = [layer for node in ends if (layer := _layer(node, readers)) is not None]
    by_rows = {key(layer.x): layer for layer in layers}
    joined: set[tuple[str, int]] = set()
    for layer in layers:  # the first layer of a run comes first
        if key(layer.x) in joined:
            continue
        run = [layer]
        while run[-1].rows is None and readers[end := key(run[-1].after.output(0))] == _READERS and end in by_rows:
            if not _share_step([*run, by_rows[end]]):
                break
            joined.add(end)
            run.append(by_rows[end])
        _join(run)


def _join(run: Sequence[_Layer]) -> None:
    first, last = run[0], run[-1]
    tables = {tuple(map(key, layer.tables)): layer.tables for layer in run}
    angles = {tuple(map(key, layer.angles)): layer.angles for layer in run if layer.angles}
    types = next((layer.types for layer in run if layer.types), ())
    rows = () if last.rows is None else (last.rows,)
    words = []
    for layer in run:
        places = [list(tables).index(tuple(map(key, layer.tables)))]
        places.append(list(angles).index(tuple(map(key, layer.angles))) if layer.angles else 0)
        parts = [layer.before.get_attributes()["how"], layer.attention.get_attributes()["how"]]
        parts += [layer.after.get_attributes()[name] for name in ("how", "activation")]
        words.append("|".join([" ".join(map(str, places)), *parts]))
    numbers = [
        np.asarray(node.input_value(index).get_node().data).reshape(-1)
        for layer in run
        for node, index in ((layer.before, 1), (layer.attention, _NUMBERS), (layer.after, 2))
    ]
    result = kernels.layers(
        [first.x, constant(np.concatenate(numbers)), first.input(_POSITIONS), first.input(_BEGINS)],
        [layer.input(_KEYS + index) for layer in run for index in (0, 1)],
        [node for table in tables.values() for node in table],
        [node for pair in angles.values() for node in pair],
        [*rows, *types],
        ",".join(node.get_attributes()["matrices"] for layer in run for node in (layer.before, layer.after)),
        ";".join([f"{len(tables)} {len(angles)} {len(rows)} {len(types)}", *words]),
    )
    last.after.output(0).replace(result)


def _layer(after: Any, readers: Counter[tuple[str, int]]) -> _Layer | None:
    attended, x = after.input_value(0), after.input_value(1)
    rows = None
    picked, kept = inputs_of(attended, "Gather"), inputs_of(x, "Gather")
    if picked is not None and kept is not None and key(picked[1]) == key(kept[1]):
        if readers[key(attended)] != 1 or readers[key(x)] != 1 or not _are_rows(picked) or not _are_rows(kept):
            return None
        attended, x, rows = picked[0], kept[0], picked[1]
        with_axis = inputs_of(attended, "Unsqueeze")
        attended = attended if with_axis is None else with_axis[0]
    attention = attended.get_node()
    if attention.get_type_name() != "Attention" or readers[key(attended)] != 1:
        return None
    before = attention.input_value(0).get_node()
    products = [attention.input_value(index) for index in range(_QKV)]
    is_whole = (
        before.get_type_name() == "NormedProducts"
        and before.get_output_size() == _QKV
        and [key(product) for product in products] == [key(output) for output in before.outputs()]
        and all(readers[key(product)] == 1 for product in products)
        and key(before.input_value(0)) == key(x)
        and len(x.get_partial_shape()) == 3
    )
    return _Layer(x, before, attention, after, rows) if is_whole else None


def _share_step(run: Sequence[_Layer]) -> bool:
    steps = {(key(layer.input(_POSITIONS)), key(layer.input(_BEGINS))) for layer in run}
    return len(steps) == 1 and len({key(types) for layer in run for types in layer.types}) <= 1


def _are_rows(gathered: list[Node]) -> bool:
    return integers_in(gathered[2]) == [0]


def key(x: Node) -> tuple[str, int]:
    """The name of an output of a node; two objects for the same output share it."""
    return x.get_node().get_name(), x.get_index()


def inputs_of(x: Node | None, kind: str) -> list[Node] | None:
    """The inputs of the node of that kind that x comes from, None if there is none."""
    node = None if x is None else x.get_node()
    if node is None or node.get_type_name() != kind:
        return None
    return [node.input_value(index) for index in range(node.get_input_size())]


def number_in(x: Node) -> float | None:
    """The number in a constant of one, None if x is something else."""
    node = x.get_node()
    if node.get_type_name() != "Constant" or int(np.prod(node.get_output_shape(0))) != 1:
        return None
    return float(np.asarray(node.data).reshape(-1)[0])


def integers_in(x: Node) -> list[int] | None:
    node = x.get_node()
    return [int(value) for value in node.data.reshape(-1)] if node.get_type_name() == "Constant" else None
