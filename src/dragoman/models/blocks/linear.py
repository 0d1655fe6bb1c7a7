"""Products with weight matrices, alone or several over the same input.

Does: cut wide matrices as the kernels like them. Does not: compress (`storage` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.nodes import add, split, width
from dragoman.models.sources.base import Array, PackedMatrix, StoredTensor
from dragoman.models.storage.constants import Node, WeightStorage, constant, weight_matrix
from dragoman.models.storage.quantize import INT4_GROUP_SIZE
from dragoman.models.weights import Weights, joined


def linear(x: Node, weights: Weights, num_rows: int, *, bias: bool = False) -> Node:
    """`x @ weight.T (+ bias)`. Shapes: x [..., in], weight [num_rows, in], bias [num_rows] -> [..., num_rows]."""
    y = product(x, weights.matrix(num_rows, width(x)), weights.storage, _bias(weights, num_rows, bias))
    return weights.adapted(y, x, num_rows)


def linears(
    x: Node, weights: Sequence[Weights], widths: Sequence[int], *, bias: bool = False, is_fused: bool
) -> list[Node]:
    """The products of x with several matrices; `is_fused`: as one product, cut afterwards."""
    if not is_fused:
        return [linear(x, part, size, bias=bias) for part, size in zip(weights, widths, strict=True)]
    pairs = list(zip(weights, widths, strict=True))
    matrix = joined([part.matrix(size, width(x)) for part, size in pairs])
    biases = np.concatenate([part.vector(size, "bias") for part, size in pairs]) if bias else None
    products = split(product(x, matrix, weights[0].storage, biases), widths)
    return [part.adapted(y, x, size) for y, (part, size) in zip(products, pairs, strict=True)]


def product(x: Node, matrix: StoredTensor, storage: WeightStorage, bias: Array | None = None) -> Node:
    """`x @ matrix.T (+ bias)`, as the sum of products over the columns that the format allows."""
    if isinstance(matrix, PackedMatrix):
        total = _product(x, matrix, storage)
    else:
        widths = column_widths(matrix.shape[1], storage.format.max_columns)
        inputs = [x] if len(widths) == 1 else split(x, widths)
        ends = list(accumulate(widths))
        matrices = [matrix[:, end - size : end] for end, size in zip(ends, widths, strict=True)]
        total = _product(inputs[0], matrices[0], storage)
        for part, columns in zip(inputs[1:], matrices[1:], strict=True):
            total = add(total, _product(part, columns, storage))
    return total if bias is None else add(total, constant(bias))


def column_widths(num_columns: int, max_columns: int | None) -> list[int]:
    """The widths of the fewest nearly equal parts of at most `max_columns` columns, in whole groups of int4's size.

    One part if `max_columns` is None or the columns are not whole groups.
    """
    num_groups, rest = divmod(num_columns, INT4_GROUP_SIZE)
    if max_columns is None or rest:
        return [num_columns]
    num_parts = -(-num_groups // max(max_columns // INT4_GROUP_SIZE, 1))
    share, num_larger = divmod(num_groups, num_parts)
    return [(share + (part < num_larger)) * INT4_GROUP_SIZE for part in range(num_parts)]


def _product(x: Node, weight: StoredTensor, storage: WeightStorage) -> Node:
    return ops.matmul(x, weight_matrix(weight, storage), transpose_a=False, transpose_b=True).output(0)


def _bias(weights: Weights, num_rows: int, is_there: bool) -> Array | None:
    return weights.vector(num_rows, "bias") if is_there else None
