"""Finds out from a model's graph which matrices share an input, and what computes it.

Columns of matrices can be multiplied by factors if their input is divided by them, and nothing else reads it. There are
three cases. The input comes out of a norm (its weight is divided). It is a product with a matrix's rows (these are
divided). It is a mixture of values (the rows of their matrix are divided).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

_PASSING = ("Unsqueeze", "Gather", "Reshape")  # operations that keep a token's numbers in order


@dataclass(frozen=True, slots=True)
class Divided:
    """The tensors that are divided by the factors. `names`: with one number or row per factor.

    `offset`: of a norm that multiplies by `offset` + weight. `num_heads`: heads of a mixture of values, 0 = not a
    mixture; `num_kv_heads`: heads of the values, each read by several consecutive heads.
    """

    names: tuple[str, ...]
    offset: float = 0.0
    num_heads: int = 0
    num_kv_heads: int = 0


@dataclass(frozen=True, slots=True)
class InputGroup:
    """Matrices with the same input. `node`: the input [tokens, ..., width]. `divided` None = nothing can be divided."""

    names: tuple[str, ...]
    node: Node
    width: int
    divided: Divided | None


@dataclass(frozen=True, slots=True)
class _Product:
    tensors: Weights
    x: Node
    result: Node
    has_bias: bool


@dataclass(frozen=True, slots=True)
class _Norm:
    tensors: Weights
    offset: float
    has_bias: bool


class Structure:
    """A `GraphWatcher`."""

    def __init__(self) -> None:
        self._products: list[_Product] = []
        self._norms: dict[Any, _Norm] = {}

    def product(self, tensors: Weights, x: Node, result: Node, *, bias: bool) -> None:
        self._products.append(_Product(tensors, x, result, bias))

    def norm(self, tensors: Weights, result: Node, *, offset: float, bias: bool) -> None:
        self._norms[_key(result)] = _Norm(tensors, offset, bias)

    def groups(self, layers: str) -> list[InputGroup]:
        """The layers' matrices, grouped by input. `layers`: the prefix of names before a layer's number."""
        of_layer = re.compile(rf"(^|\.){re.escape(layers)}\.\d+\.")
        by_input: dict[Any, list[_Product]] = {}
        inputs: dict[str, set[Any]] = {}
        for product in self._products:
            by_input.setdefault(_key(product.x), []).append(product)
            inputs.setdefault(product.tensors.name(), set()).add(_key(product.x))
        groups = []
        for products in by_input.values():
            readers = [
                product
                for product in products
                if product.tensors.is_as_stored
                and of_layer.search(product.tensors.name())
                and len(inputs[product.tensors.name()]) == 1
            ]
            names = tuple(dict.fromkeys(product.tensors.name() for product in readers))
            if names:
                x = readers[0].x
                num_columns = int(x.get_partial_shape()[-1].get_length())
                divided = self._divided(x) if len(readers) == len(products) and self._only(x, readers) else None
                groups.append(InputGroup(names, x, num_columns, divided))
        return groups

    def _only(self, x: Node, readers: list[_Product]) -> bool:
        return len(x.get_target_inputs()) == len(readers) and all(
            target.get_node().get_type_name() == "MatMul" for target in x.get_target_inputs()
        )

    def _divided(self, x: Node) -> Divided | None:
        norm = self._norms.get(_key(x))
        if norm is not None:
            return Divided(_names(norm.tensors, norm.has_bias), norm.offset)
        node = x.get_node()
        if node.get_type_name() == "Multiply":
            found = (self._made_for(source.get_source_output(), node) for source in node.inputs())
            return next((divided for divided in found if divided is not None), None)
        return self._of_values(x)

    def _made_for(self, result: Node, reader: Any) -> Divided | None:
        """A whole matrix whose product only that node reads."""
        product = next((each for each in self._products if _key(each.result) == _key(result)), None)
        targets = result.get_target_inputs()
        is_alone = len(targets) == 1 and all(target.get_node() == reader for target in targets)
        if product is None or not is_alone or not product.tensors.is_whole:
            return None
        return Divided(_names(product.tensors, product.has_bias))

    def _of_values(self, x: Node) -> Divided | None:
        """The matrix of the values that are mixed into x."""
        node = x.get_node()
        while node.get_type_name() in _PASSING and all(
            len(output.get_target_inputs()) == 1 for output in node.outputs()
        ):
            node = node.input(0).get_source_output().get_node()
        if node.get_type_name() != "PagedAttentionExtension":
            return None
        values = node.input(2).get_source_output()
        reshaped = values.get_node()
        if reshaped.get_type_name() != "Reshape":
            return None
        divided = self._made_for(reshaped.input(0).get_source_output(), reshaped)
        if divided is None:
            return None
        info = node.get_rt_info()
        num_kv_heads, head_size = int(info["num_k_heads"].astype(int)), int(info["v_head_size"].astype(int))
        width = int(node.output(0).get_partial_shape()[-1].get_length())
        return Divided(divided.names, num_heads=width // head_size, num_kv_heads=num_kv_heads)


def _names(tensors: Weights, has_bias: bool) -> tuple[str, ...]:
    return (tensors.name(), tensors.name("bias")) if has_bias else (tensors.name(),)


def _key(output: Node) -> tuple[str, int]:
    """A key for a node's output, which several objects may represent."""
    return output.get_node().get_name(), output.get_index()
