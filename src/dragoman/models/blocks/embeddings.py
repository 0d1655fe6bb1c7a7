"""The two ends of a decoder: token ids to hidden states, hidden states to logits.

Does: tables and heads. Does not: know what families scale or cap (they do).
"""

from __future__ import annotations

from typing import Any

from dragoman.kernels import graph as kernels
from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.nodes import gather_rows, reshape, unsqueeze
from dragoman.models.sources.gguf.stored import QuantisedRows
from dragoman.models.storage.constants import Node, embedding_table
from dragoman.models.storage.packing import keeps_type, packed, packed_order
from dragoman.models.weights import Weights


def embedding(token_ids: Node, weights: Weights, num_rows: int, size: int, *, is_large: bool = False) -> Node:
    """The table's rows for `token_ids` as f32. Shapes: token_ids i64 [T] -> [T, 1, size].

    `is_large`: it has as many numbers as all else; kernels of our own read it as they read the head's matrix.
    """
    table: Any = weights.matrix(num_rows, size)
    if _is_packed(table, weights, is_large=is_large):
        as_head = packed(table, weights.careful().storage, name=weights.whole_name)
        return unsqueeze(kernels.table_rows(token_ids, as_head), 1)
    return unsqueeze(gather_rows(embedding_table(table, weights.storage), token_ids), 1)


def _is_packed(table: Any, weights: Weights, *, is_large: bool) -> bool:
    """True if rows are read from the table as kernels of our own have it: with the values of its file, or the head's."""
    if isinstance(table, QuantisedRows) and keeps_type(table.type_name, weights.storage.format):
        return True
    return weights.storage.format.is_ours and (weights.is_tied or is_large) and packed_order(table) is None


def logits(x: Node, weights: Weights, vocab_size: int, *, bias: bool = False) -> Node:
    """A score for every token of the vocabulary. Shapes: x [R, 1, hidden] -> f32 [R, vocab].

    What is lost in the head is lost in every logit: of all matrices it gains the most from more bits.
    """
    return reshape(linear(x, weights.careful(), vocab_size, bias=bias), -1, vocab_size)
