"""Counts the blocks that a sequence needs of a cache for layers with a window.

Does: arithmetic. Does not: own blocks. Used by the block pools, the scheduler's checks, and the sizing of the cache.

A token sees the `window` tokens up to itself. A sequence therefore holds, before a step, the blocks that its next token can
see, and gets blocks for the step's tokens; after the step it gives back what no later token can see. While it decodes that
is a fixed number of blocks; a piece of a prompt needs more, for one step, and is cut to what the cache has besides.
"""

from __future__ import annotations

from dataclasses import dataclass

MIN_CHUNK = 4
"""The fewest tokens that let every prompt be cut without a chunk or a remainder of one token."""


@dataclass(frozen=True, slots=True)
class CachePool:
    """The blocks of one cache kind: of the layers in which a token sees `window` tokens, itself included; 0 = all."""

    num_blocks: int
    window: int = 0


def first_visible_block(position: int, window: int, block_size: int) -> int:
    """The block, counted from the sequence's beginning, with the first token that the one at `position` sees."""
    return max(position - window + 1, 0) // block_size if window else 0


def blocks_for(num_tokens: int, block_size: int) -> int:
    """The number of blocks of a sequence of `num_tokens` tokens."""
    return -(-num_tokens // block_size)


def most_blocks(window: int, block_size: int) -> int:
    """The blocks that a window of tokens can touch, wherever it lies: what a sequence holds at most while it decodes."""
    return (window + block_size - 2) // block_size + 1


def chunk_blocks(pool: CachePool, block_size: int, max_batch_tokens: int) -> int:
    """The blocks of a pool with a window that pieces of prompts may take besides the windows of running sequences.

    As many as a step's tokens fill, at most half of what one window leaves. 0 if that is too little for any piece: then
    only sequences that fit the pool whole can run.
    """
    num_left = pool.num_blocks - most_blocks(pool.window, block_size)
    least = blocks_for(MIN_CHUNK - 1, block_size)
    if num_left < least:
        return 0
    return max(min(blocks_for(max_batch_tokens - 1, block_size), num_left // 2), least)


def longest_chunk(pool: CachePool, block_size: int, max_batch_tokens: int) -> int:
    """The most tokens of one sequence that a step may compute so that the pool's `chunk_blocks` suffice."""
    num_blocks = chunk_blocks(pool, block_size, max_batch_tokens) if pool.window else 0
    return min(num_blocks * block_size + 1, max_batch_tokens) if num_blocks else max_batch_tokens


def longest_sequence(pool: CachePool, block_size: int) -> int | None:
    """The tokens of the longest sequence that the pool can hold as it runs; None = it may be of any length."""
    if pool.window and chunk_blocks(pool, block_size, MIN_CHUNK):
        return None
    return pool.num_blocks * block_size
