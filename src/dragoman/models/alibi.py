"""How attention fades with distance in models that are told positions by that alone.

Does: arithmetic. Does not: build nodes (the attention operation takes the slopes). Called by the families.
Source: ALiBi (arXiv:2108.12409).
"""

from __future__ import annotations

import math


def alibi_slopes(num_heads: int, largest_exponent: float = 8.0) -> tuple[float, ...]:
    """What each head takes off a score for every token of distance, from 2 ** -(exponent / heads) to 2 ** -exponent.

    If the heads are no power of two, the slopes of the next one are shared out: every second, then those between.
    """
    size = 2 ** math.ceil(math.log2(num_heads))
    slopes = [2.0 ** (-largest_exponent * (i + 1) / size) for i in range(size)]
    return tuple(slopes if size == num_heads else (slopes[1::2] + slopes[::2])[:num_heads])
