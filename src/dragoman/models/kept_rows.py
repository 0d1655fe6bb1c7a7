"""Counts the rows that a block keeps for a convolution, which looks back at the tokens before.

Does: arithmetic. Does not: keep anything (a graph's operation does). Used by builders of graphs and by the sizing of the
cache.
"""

from __future__ import annotations

from dragoman.kernels.graph import BLOCK_SLOTS
from dragoman.models.facts import ConvolutionFacts


def rows_per_block(facts: ConvolutionFacts, *, takes_back: bool) -> int:
    """Of how many of its tokens, the last ones, a block keeps what the convolution read.

    As many as it looks back at, since a sequence goes on behind the last one. All of them if tokens may be taken back: then
    it may go on behind any.
    """
    return BLOCK_SLOTS if takes_back else min(facts.length - 1, BLOCK_SLOTS)
