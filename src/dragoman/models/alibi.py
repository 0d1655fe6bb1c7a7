"""Slopes by which attention fades with distance, in models whose only sense of position that is.

Does: arithmetic. Does not: build nodes (the attention operation takes the slopes). Called by the families.
Source: ALiBi (arXiv:2108.12409).
"""

from __future__ import annotations

import math


def alibi_slopes(num_heads: int, largest_exponent: float = 8.0) -> tuple[float, ...]:
    """Each head's deduction from a score per token of distance, from 2 ** -(exponent / heads) to 2 ** -exponent.

    If the number of heads is not a power of two, they get slopes of the next one: every second, then those between.
    """
    size = 2 ** math.ceil(math.log2(num_heads))
    slopes = [2.0 ** (-largest_exponent * (i + 1) / size) for i in range(size)]
    return tuple(slopes if size == num_heads else (slopes[1::2] + slopes[::2])[:num_heads])
