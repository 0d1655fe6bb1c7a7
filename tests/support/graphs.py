"""Compares the graphs that are built from two models, without compiling them: the same nodes compute the same numbers.

Does: build the decoder's graph in f32, as the loader does; tell where two graphs differ. Used by tests of checkpoints that
are stored in several ways: building a small one takes hundredths of a second, compiling and running it half of one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dragoman.models import ModelOptions
from dragoman.models.families import read_model
from dragoman.models.profile import kernel_profile
from dragoman.models.storage.constants import WeightStorage
from dragoman.models.storage.row_parts import RowParts
from dragoman.models.stored.opening import stored_weights
from dragoman.models.vision.described import read_seeing_config
from dragoman.models.weights import Weights

ROUNDING = 1e-5  # of numbers that one of two ways computes, as frequencies of a rule


def graph_of(path: Path) -> Any:
    """The decoder's graph of the model at that path, in f32."""
    model = read_model(read_seeing_config(path))
    profile = kernel_profile(ModelOptions("f32"), has_states=bool(model.facts.state_layers))
    with stored_weights(path).open() as source, RowParts(num_workers=1) as parts:
        graph = model.build(Weights(source, WeightStorage(profile.weights, parts)))
        parts.finish()
    return graph


def difference(first: Path, second: Path) -> str | None:
    """The first place where the graphs of two models do not compute the same, None if there is none."""
    return _difference(graph_of(first), graph_of(second))


def _difference(first: Any, second: Any) -> str | None:
    nodes, others = list(first.get_ordered_ops()), list(second.get_ordered_ops())
    places = ({node.get_name(): place for place, node in enumerate(ordered)} for ordered in (nodes, others))
    place_of, other_place_of = places
    for place, (node, other) in enumerate(zip(nodes, others, strict=False)):
        kinds = node.get_type_name(), other.get_type_name()
        if kinds[0] != kinds[1]:
            return f"node {place} is {kinds[0]} or {kinds[1]}"
        if _inputs(node, place_of) != _inputs(other, other_place_of):
            return f"node {place}, {kinds[0]}, has other inputs"
        if kinds[0] != "Constant":
            if node.get_attributes() != other.get_attributes():
                return f"node {place}, {kinds[0]}, has other attributes"
        elif not _are_close(node, other):
            return f"node {place} is another constant, beside {_users(node)}"
    return None if len(nodes) == len(others) else f"{len(nodes)} or {len(others)} nodes"


def _inputs(node: Any, place_of: dict[str, int]) -> list[tuple[int, int]]:
    sources = (value.get_source_output() for value in node.inputs())
    return [(place_of[source.get_node().get_name()], source.get_index()) for source in sources]


def _are_close(node: Any, other: Any) -> bool:
    values, others = np.asarray(node.data), np.asarray(other.data)
    if values.shape != others.shape or values.dtype != others.dtype:
        return False
    if values.dtype.kind != "f" or np.array_equal(values, others):
        return np.array_equal(values, others)
    largest = float(np.abs(others[np.isfinite(others)]).max(initial=0))
    return bool(np.allclose(values, others, rtol=ROUNDING, atol=ROUNDING * largest))


def _users(node: Any) -> str:
    return ", ".join(value.get_node().get_type_name() for value in node.output(0).get_target_inputs())
