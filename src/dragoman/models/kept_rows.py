"""How much a block keeps for convolutions, which look back at the tokens before.

Does: arithmetic. Does not: keep anything (the engine's runner does). Used by the runner and by who sizes the cache.
"""

from __future__ import annotations

from dragoman.models.facts import ModelFacts
from dragoman.models.profile import KernelProfile, ModelOptions


def rows_per_block(facts: ModelFacts, options: ModelOptions, block_size: int) -> int:
    """Of how many of its tokens, the last ones, a block keeps what convolutions computed; 0 = there are none.

    As many as a convolution looks back at, since a sequence goes on behind the last one. All of them if tokens may be taken
    back: then it may go on behind any.
    """
    if not facts.convolution_layers:
        return 0
    return block_size if options.takes_back else min(facts.convolution_reach, block_size)


def kept_bytes_per_block(facts: ModelFacts, options: ModelOptions, profile: KernelProfile) -> int:
    """Bytes of all rows that a block keeps, of all convolutions."""
    row_bytes = facts.convolution_width * (2 if profile.keeps_bf16 else 4)
    return rows_per_block(facts, options, profile.block_size) * row_bytes
