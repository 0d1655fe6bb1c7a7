"""The two ends of a decoder: token ids to hidden states, hidden states to logits. Families scale and cap."""

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
