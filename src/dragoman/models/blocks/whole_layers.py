"""Makes one operation of all layers that follow each other, where each is three operations of our kernels.

Used behind `fusing`, on the thread that builds the graph. Bits stay the same. A run ends where something else reads a
layer's output or comes between: pictures, experts, recurrent layers, adapters, shared keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov

from dragoman.kernels import graph as kernels
from dragoman.models.blocks.matching import inputs_of, integers_in, key
from dragoman.models.storage.constants import Node, constant

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
        and [key(one) for one in products] == [key(one) for one in before.outputs()]
        and all(readers[key(one)] == 1 for one in products)
        and key(before.input_value(0)) == key(x)
        and len(x.get_partial_shape()) == 3
    )
    return _Layer(x, before, attention, after, rows) if is_whole else None


def _share_step(run: Sequence[_Layer]) -> bool:
    steps = {(key(layer.input(_POSITIONS)), key(layer.input(_BEGINS))) for layer in run}
    return len(steps) == 1 and len({key(types) for layer in run for types in layer.types}) <= 1


def _are_rows(gathered: list[Node]) -> bool:
    return integers_in(gathered[2]) == [0]
