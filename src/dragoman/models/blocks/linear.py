"""Products with weight matrices, alone or several over the same input; and the two ends of a decoder.

Chooses whose kernels compute them. Families scale and cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from openvino import opset13 as ops

from dragoman.kernels import graph as kernels
from dragoman.models.blocks.nodes import add, gather_rows, integers, reshape, scalar, split, unsqueeze, width
from dragoman.models.sources.base import Array, PackedMatrix, StoredTensor, is_order
from dragoman.models.sources.gguf_rows import QuantisedRows
from dragoman.models.storage.constants import Node, WeightStorage, constant, embedding_table, weight_matrix
from dragoman.models.storage.packing import keeps_type, packed, packed_order
from dragoman.models.weights import Weights, can_be_joined, joined


def linear(x: Node, weights: Weights, num_rows: int, *, bias: bool = False) -> Node:
    """`x @ weight.T (+ bias)`. Shapes: x [..., in], weight [num_rows, in], bias [num_rows] -> [..., num_rows]."""
    shift = _bias(weights, num_rows, bias)
    result = product(x, weights.matrix(num_rows, width(x)), weights.storage, shift, name=weights.whole_name)
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
    """The product plus the adapters' part; reports the product to the graph's watcher."""
    if weights.storage.watcher is not None:
        weights.storage.watcher.product(weights, x, result, bias=bias)
    return weights.adapted(result, x, num_rows)


def product(
    x: Node, matrix: StoredTensor, storage: WeightStorage, bias: Array | None = None, *, name: str | None = None
) -> Node:
    """`x @ matrix.T (+ bias)`. `name`: see `packed`."""
    if storage.format.is_ours:
        (result,) = kernels.products(in_order(x, packed_order(matrix)), [packed(matrix, storage, bias, name=name)])
        return result
    if isinstance(matrix, PackedMatrix) and storage.format.stored_type != "f32":
        x = in_order(x, matrix.column_order)
    total = ops.matmul(x, weight_matrix(matrix, storage), transpose_a=False, transpose_b=True).output(0)
    return total if bias is None else add(total, constant(bias))


def in_order(x: Node, order: Array | None) -> Node:
    return x if order is None else ops.gather(x, integers(*order.tolist()), scalar(-1, np.int64)).output(0)


def have_one_order(matrices: Sequence[StoredTensor]) -> bool:
    first, *others = (packed_order(matrix) for matrix in matrices)
    return all(is_order(order, first) for order in others)


def _bias(weights: Weights, num_rows: int, is_there: bool) -> Array | None:
    return weights.vector(num_rows, "bias") if is_there else None


def embedding(token_ids: Node, weights: Weights, num_rows: int, size: int, *, is_large: bool = False) -> Node:
    """The table's rows, f32 [T, 1, size]. `is_large`: our kernels read it as they read the head's matrix."""
    table: Any = weights.matrix(num_rows, size)
    if _is_packed(table, weights, is_large=is_large):
        as_head = packed(table, weights.careful().storage, name=weights.whole_name)
        return unsqueeze(kernels.table_rows(token_ids, as_head), 1)
    return unsqueeze(gather_rows(embedding_table(table, weights.storage), token_ids), 1)


def _is_packed(table: Any, weights: Weights, *, is_large: bool) -> bool:
    if isinstance(table, QuantisedRows) and keeps_type(table.type_name, weights.storage.format):
        return True
    return weights.storage.format.is_ours and (weights.is_tied or is_large) and packed_order(table) is None


def logits(x: Node, weights: Weights, vocab_size: int, *, bias: bool = False) -> Node:
    """f32 [R, vocab]. The head is stored with more bits: what it loses is lost in every logit."""
    return reshape(linear(x, weights.careful(), vocab_size, bias=bias), -1, vocab_size)
