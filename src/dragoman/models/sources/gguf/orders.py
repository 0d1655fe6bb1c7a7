"""Computes the order of a checkpoint's rows in a GGUF file."""

from __future__ import annotations

import numpy as np

from dragoman.gguf.architecture import Order
from dragoman.models.sources.base import Array


def row_order(order: Order, num_rows: int, num_heads: int, num_kv_heads: int, name: str) -> Array:
    """The place in the file of each row of a checkpoint's tensor, i64 [num_rows].

    "pairs": llama.cpp rotates neighbours, so rows of a head's two halves alternate in the file. "by_group": the file
    has all queries, then keys, then values; the checkpoint has for each key/value head its queries, its key and its
    value.
    Raises: ValueError if the rows are not whole heads.
    """
    rows = np.arange(num_rows)
    if order == "pairs":
        heads = num_kv_heads if name == "attn_k" else num_heads
        return rows.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    size, rest = divmod(num_rows, num_heads + 2 * num_kv_heads)
    if rest:
        raise ValueError(f"{num_rows} rows are not those of {num_heads} queries and {num_kv_heads} keys and values")
    ends = np.cumsum([num_heads * size, num_kv_heads * size])
    parts = [part.reshape(num_kv_heads, -1) for part in np.split(rows, ends)]
    return np.concatenate(parts, axis=1).reshape(-1)


def turns_order(num_rows: int, num_keys: int, num_heads: int, size: int) -> Array:
    """i64 [num_rows] for rows of values' heads: the file has the first head of every key, then the second, and so on.

    Raises: ValueError if there are fewer rows.
    """
    rows = np.arange(num_rows)
    turning = num_heads if num_rows == num_heads else num_heads * size
    if num_rows < turning:
        raise ValueError(f"{num_rows} rows are fewer than those of {num_heads} heads")
    heads = rows[num_rows - turning :].reshape(num_heads // num_keys, num_keys, -1)
    return np.concatenate((rows[: num_rows - turning], heads.swapaxes(0, 1).reshape(-1)))
