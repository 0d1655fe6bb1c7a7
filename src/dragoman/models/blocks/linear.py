"""Products with weight matrices, alone or several over the same input.

Does: cut wide matrices as the kernels like them. Does not: compress (`storage` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate
from math import gcd

import numpy as np
from openvino import opset13 as ops

from dragoman.kernels import graph as kernels
from dragoman.models.blocks.nodes import add, integers, scalar, split, width
from dragoman.models.sources.base import Array, PackedMatrix, StoredTensor
from dragoman.models.storage.constants import Node, WeightStorage, constant, weight_matrix
from dragoman.models.storage.groups import INT4_GROUP_SIZE
from dragoman.models.storage.packing import is_order, packed, packed_order
from dragoman.models.weights import Weights, can_be_joined, joined


def linear(x: Node, weights: Weights, num_rows: int, *, bias: bool = False) -> Node:
    """`x @ weight.T (+ bias)`. Shapes: x [..., in], weight [num_rows, in], bias [num_rows] -> [..., num_rows]."""
    result = product(x, weights.matrix(num_rows, width(x)), weights.storage, _bias(weights, num_rows, bias))
    return _told(result, x, weights, num_rows, bias=bias)


def linears(
    x: Node, weights: Sequence[Weights], widths: Sequence[int], *, bias: bool = False, is_fused: bool
) -> list[Node]:
    """The products of x with several matrices; `is_fused`: as one product, cut afterwards, if they are stored alike."""
    matrices = [part.matrix(size, width(x)) for part, size in zip(weights, widths, strict=True)]
    biases = [_bias(part, size, bias) for part, size in zip(weights, widths, strict=True)]
    storage = weights[0].storage
    if storage.format.is_ours and have_one_order(matrices):
        nodes = [
            packed(matrix, part.storage, shift) for matrix, part, shift in zip(matrices, weights, biases, strict=True)
        ]
        products = kernels.products(in_order(x, packed_order(matrices[0])), nodes)
    elif is_fused and can_be_joined(matrices):
        shifts = [shift for shift in biases if shift is not None]
        products = split(product(x, joined(matrices), storage, np.concatenate(shifts) if shifts else None), widths)
    else:
        products = [product(x, matrix, storage, shift) for matrix, shift in zip(matrices, biases, strict=True)]
    parts = zip(products, weights, widths, strict=True)
    return [_told(result, x, part, size, bias=bias) for result, part, size in parts]


def _told(result: Node, x: Node, weights: Weights, num_rows: int, *, bias: bool) -> Node:
    """The product with what adapters add to it; whoever watches the graph is told of it."""
    if weights.storage.watcher is not None:
        weights.storage.watcher.product(weights, x, result, bias=bias)
    return weights.adapted(result, x, num_rows)


def product(x: Node, matrix: StoredTensor, storage: WeightStorage, bias: Array | None = None) -> Node:
    """`x @ matrix.T (+ bias)`, as the sum of products over the columns that the format allows."""
    if storage.format.is_ours:
        (result,) = kernels.products(in_order(x, packed_order(matrix)), [packed(matrix, storage, bias)])
        return result
    unit = 1
    if isinstance(matrix, PackedMatrix):
        if storage.format.stored_type != "f32":
            x = in_order(x, matrix.column_order)
        unit = matrix.group_size if matrix.num_groups > 1 else 1
    widths = column_widths(matrix.shape[1], storage.format.max_columns, unit)
    if len(widths) == 1:
        total = _product(x, matrix, storage)
    else:
        ends = list(accumulate(widths))
        products = [
            _product(part, _columns(matrix, end - size, end), storage)
            for part, size, end in zip(split(x, widths), widths, ends, strict=True)
        ]
        total = reduce(add, products)
    return total if bias is None else add(total, constant(bias))


def in_order(x: Node, order: Array | None) -> Node:
    """x with its columns in that order, as a packed matrix has them; None = as they are."""
    return x if order is None else ops.gather(x, integers(*order.tolist()), scalar(-1, np.int64)).output(0)


def have_one_order(matrices: Sequence[StoredTensor]) -> bool:
    """True if the columns of all matrices are in one order, packed as they are."""
    first, *others = (packed_order(matrix) for matrix in matrices)
    return all(is_order(order, first) for order in others)


def _columns(matrix: StoredTensor, begin: int, end: int) -> StoredTensor:
    return matrix.columns(begin, end) if isinstance(matrix, PackedMatrix) else matrix[:, begin:end]


def column_widths(num_columns: int, max_columns: int | None, unit: int = 1) -> list[int]:
    """The widths of the fewest nearly equal parts of at most `max_columns` columns, None = of any number.

    Parts are whole units, and whole groups of int4's size if the columns are.
    """
    if max_columns is None:
        return [num_columns]
    unit = unit if unit > 1 else gcd(num_columns, INT4_GROUP_SIZE)
    num_units = num_columns // unit
    num_parts = -(-num_units // max(max_columns // unit, 1))
    share, num_larger = divmod(num_units, num_parts)
    return [(share + (part < num_larger)) * unit for part in range(num_parts)]


def _product(x: Node, weight: StoredTensor, storage: WeightStorage) -> Node:
    return ops.matmul(x, weight_matrix(weight, storage), transpose_a=False, transpose_b=True).output(0)


def _bias(weights: Weights, num_rows: int, is_there: bool) -> Array | None:
    return weights.vector(num_rows, "bias") if is_there else None
