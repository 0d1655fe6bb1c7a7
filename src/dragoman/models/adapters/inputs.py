"""The inputs by which a graph computes with adapters, different ones for different tokens of a step.

Adds `mask * (x A) B` to products. A and B hold the rows of all adapters below each other; a token's row of the mask is
1 in the columns of its adapter's rows, so other tokens get exactly zero. Source: arXiv:2311.03285.
x and the mask are matrices: with one axis more each token is a product of its own, three times as slow at 256 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models.blocks.nodes import add, gather_rows, multiply, parameter, reshape, width
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node, as_f32
from dragoman.models.weights import Adapting, Place

MASK = "adapter_mask"
DOWN, UP = "adapter_a.", "adapter_b."
ADAPTER_INPUTS = (MASK, DOWN, UP)
"""The begins of names of inputs for adapters."""

_LOGIT_ROWS = "sampled_tokens_indices"
_WEIGHT = ".weight"


class AdapterInputs(Adapting):
    """Gives a graph the inputs of adapters. `takes`: True if a module may be changed by one.

    `computes_in_bf16`: A and B are bf16, as the graph's arithmetic is, or each step would convert them.
    """

    def __init__(self, takes: Callable[[str], bool], *, computes_in_bf16: bool) -> None:
        self._takes = takes
        self._type = ov.Type.bf16 if computes_in_bf16 else ov.Type.f32
        self.parameters: list[Any] = []
        self._mask = self._input(MASK, ov.Type.f32, -1)
        self._kept_mask: Node | None = None
        self._inputs: dict[str, Node] = {}
        self._rows: dict[tuple[str, int], Node] = {}
        self._lowered: dict[tuple[str, str, int], Node] = {}
        self._of_all_tokens: set[str] = set()

    def _adds_to(self, name: str) -> bool:
        """True if adapters may change that tensor. Experts are left out: their rows are not those of the step."""
        return name.endswith(_WEIGHT) and ".experts." not in name and self._takes(name.removesuffix(_WEIGHT))

    def added(self, y: Node, x: Node, place: Place) -> Node:
        if not self._adds_to(place.name):
            return y
        module = place.name.removesuffix(_WEIGHT)
        up = self._matrix(f"{UP}{module}@{_rows_text(place)}", len(place.rows))
        product = ops.matmul(self._lower(x, module), up, transpose_a=False, transpose_b=False).output(0)
        has_axis = len(x.get_partial_shape()) == 3
        return add(y, reshape(product, -1, 1, width(product)) if has_axis else product)

    def _lower(self, x: Node, module: str) -> Node:
        """mask * (x A), once for all parts of a matrix. Shape: [T, R]."""
        key = (module, *_key(x))
        if key not in self._lowered:
            down = self._matrix(DOWN + module, width(x))
            product = ops.matmul(self._rows_of(x), down, transpose_a=False, transpose_b=True).output(0)
            self._lowered[key] = multiply(product, self._mask_of(x))
        return self._lowered[key]

    def _rows_of(self, x: Node) -> Node:
        """Once for all products with x. Shapes: [T, 1, in] or [T, in] -> [T, in]."""
        if len(x.get_partial_shape()) == 2:
            return x
        if _key(x) not in self._rows:
            self._rows[_key(x)] = reshape(x, -1, width(x))
        return self._rows[_key(x)]

    def _mask_of(self, x: Node) -> Node:
        """The mask of x's rows: of all tokens, or of those whose logits are wanted. Shape: [T, R]."""
        rows = self._logit_rows(x)
        if rows is None:
            return self._mask
        if self._kept_mask is None:
            self._kept_mask = gather_rows(self._mask, rows)
        return self._kept_mask

    def _logit_rows(self, x: Node) -> Node | None:
        """The input that chose x's rows among the tokens, if x depends on it."""
        waiting = [x.get_node()]
        seen: set[str] = set()
        while waiting:
            node = waiting.pop()
            name = node.get_friendly_name()
            if name in seen or name in self._of_all_tokens:
                continue
            seen.add(name)
            if name == _LOGIT_ROWS:
                return node.output(0)
            waiting += [node.input_value(index).get_node() for index in range(node.get_input_size())]
        self._of_all_tokens |= seen
        return None

    def _matrix(self, name: str, size: int) -> Node:
        if name not in self._inputs:
            self._inputs[name] = as_f32(self._input(name, self._type, size))
        return self._inputs[name]

    def _input(self, name: str, element_type: Any, num_columns: int) -> Node:
        self.parameters.append(parameter(name, -1, num_columns, dtype=element_type))
        return self.parameters[-1].output(0)


def _key(x: Node) -> tuple[str, int]:
    return x.get_node().get_friendly_name(), x.get_index()


# --- the inputs of a compiled graph -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """An input for B, or for some of its rows. `rows`: the product's of the `num_stored` outputs, in its order."""

    port: Any
    num_stored: int
    rows: Array


@dataclass(frozen=True, slots=True)
class AdapterPlace:
    """A module that adapters may change. `down`: the input for A, of `num_columns` columns."""

    module: str
    down: Any
    num_columns: int
    parts: tuple[Part, ...]

    @property
    def row_bytes(self) -> int:
        return int(self.down.get_element_type().size) * (self.num_columns + sum(len(part.rows) for part in self.parts))


def adapter_places(compiled: Any) -> tuple[AdapterPlace, ...]:
    downs: dict[str, Any] = {}
    parts: dict[str, list[Part]] = {}
    for port in compiled.inputs:
        name = port.get_any_name()
        if name.startswith(DOWN):
            downs[name.removeprefix(DOWN)] = port
        elif name.startswith(UP):
            module, _, rows = name.removeprefix(UP).rpartition("@")
            parts.setdefault(module, []).append(Part(port, *_read_rows(rows)))
    return tuple(
        AdapterPlace(module, port, port.get_partial_shape()[1].get_length(), tuple(parts[module]))
        for module, port in downs.items()
    )


def _rows_text(place: Place) -> str:
    """The rows as runs of numbers with equal steps: `STORED;START:STEP:COUNT;...`."""
    runs: list[tuple[int, int, int]] = []
    rows: Sequence[int] = place.rows.tolist()
    index = 0
    while index < len(rows):
        step = rows[index + 1] - rows[index] if index + 1 < len(rows) else 1
        count = 1
        while index + count < len(rows) and rows[index + count] - rows[index + count - 1] == step:
            count += 1
        runs.append((rows[index], step, count))
        index += count
    return ";".join([str(place.num_stored), *(f"{start}:{step}:{count}" for start, step, count in runs)])


def _read_rows(text: str) -> tuple[int, Array]:
    stored, *runs = text.split(";")
    numbers = [tuple(int(number) for number in run.split(":")) for run in runs]
    return int(stored), np.concatenate([start + step * np.arange(count) for start, step, count in numbers])
