"""Cuts a tower's graph within and between its layers. Used while a graph is built, on the thread that loads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import openvino as ov
from openvino import opset13 as ops

from dragoman.models.storage.constants import Node

_END = "end of part "


def end_of_part(x: Node) -> Node:
    node = x.get_node()
    node.set_friendly_name(_END + node.get_friendly_name())
    return x


def parts_of(graph: ov.Model) -> list[ov.Model]:
    """The parts of a graph in the order of computing. The graph is used up."""
    levels = _levels(graph)
    parts = [_Part(index) for index in range(max(levels.values()) + 1)]
    for parameter in graph.get_parameters():
        parts[0].inputs[parameter.output(0).get_any_name()] = parameter
    for node in graph.get_ordered_ops():
        name = node.get_friendly_name()
        if name not in levels:
            continue
        part = parts[levels[name]]
        if node.get_type_name() == "Result":
            part.results.append(node)
        for place in node.inputs():
            source = place.get_source_output()
            level = levels.get(source.get_node().get_friendly_name(), levels[name])
            if level < levels[name]:
                place.replace_source_output(part.input_like(parts[level].output_of(source)))
    return [part.graph(f"{graph.get_friendly_name()} {index}") for index, part in enumerate(parts)]


@dataclass(slots=True)
class _Part:
    index: int
    inputs: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)

    def output_of(self, value: Node) -> Node:
        """An output for later parts, under the same name in every build: a part's file may have to be made again."""
        if value.get_node().get_type_name() == "Parameter":
            return value
        if not value.get_names():
            value.set_names({f"part {self.index}, value {len(self.outputs)}"})
        self.outputs.setdefault(value.get_any_name(), value)
        return value

    def input_like(self, value: Node) -> Node:
        name = value.get_any_name()
        if name not in self.inputs:
            parameter = ops.parameter(value.get_partial_shape(), value.get_element_type())
            parameter.output(0).set_names({name})
            self.inputs[name] = parameter
        return self.inputs[name].output(0)

    def graph(self, name: str) -> ov.Model:
        return ov.Model([*map(ops.result, self.outputs.values()), *self.results], list(self.inputs.values()), name)


def _levels(graph: ov.Model) -> dict[str, int]:
    levels: dict[str, int] = {}
    for node in graph.get_ordered_ops():
        sources = [place.get_source_output().get_node().get_friendly_name() for place in node.inputs()]
        found = [levels[source] + source.startswith(_END) for source in sources if source in levels]
        if found or node.get_type_name() == "Parameter":
            levels[node.get_friendly_name()] = max(found, default=0)
    return levels
