"""Reads the nodes of a finished graph, on the thread that builds it."""

from __future__ import annotations

import numpy as np

from dragoman.models.storage.constants import Node


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
