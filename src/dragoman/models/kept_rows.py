"""Counts the rows that a block keeps for a convolution, for builders of graphs and the sizing of the cache."""

from __future__ import annotations

from dragoman.kernels.graph import BLOCK_SLOTS
from dragoman.models.facts import ConvolutionFacts


def rows_per_block(facts: ConvolutionFacts, *, takes_back: bool) -> int:
    """The number of a block's last tokens whose rows are kept: those looked back at, all if tokens may be taken back."""
    return BLOCK_SLOTS if takes_back else min(facts.length - 1, BLOCK_SLOTS)
