"""Sizes the key/value cache in blocks: arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dragoman.engine.rolling.blocks.block_manager import blocks_for, most_blocks

_GIB = 1024**3

# Of the free memory after the weights are loaded. The rest is for activations, HTTP and the page cache.
_SHARE_OF_FREE_MEMORY = 0.5
# One CPU rarely uses more cache, as its speed bounds the number of useful sequences.
_MOST_AUTOMATIC_BYTES = 8 * _GIB
# Longer sequences gain little from batching. With 386 million parameters, 32 streams gave 1.5 times the tokens of 8 after
# 1,024 tokens, 1.2 times after 4,096, and no more after 8,192.
_MODERATE_TOKENS = 1024
PLENTY_BYTES = int(_MOST_AUTOMATIC_BYTES / _SHARE_OF_FREE_MEMORY)
"""The free memory from which on the cache has its largest automatic size."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Bytes of a block and visible tokens (0 = all) of each cache kind."""

    block_bytes: tuple[int, ...]
    windows: tuple[int, ...]
    block_size: int

    def bytes_of(self, num_blocks: Sequence[int]) -> int:
        return sum(count * size for count, size in zip(num_blocks, self.block_bytes, strict=True))


@dataclass(frozen=True, slots=True)
class CacheUse:
    """The expected sequences: their length, the number that runs at once, and the tokens of a step."""

    max_model_len: int
    max_num_seqs: int
    max_batch_tokens: int


def choose_num_blocks(
    shape: CacheShape, use: CacheUse, *, kv_cache_gb: float | None, available_bytes: int
) -> tuple[int, ...]:
    """Blocks of each kind: what fits into `kv_cache_gb`, or else enough for `max_num_seqs` sequences of full length.

    Bounded by a share of the available memory, but for one sequence of full length at least. Kinds with a window get at
    most as many blocks as the first kind, and at most an equal part of the memory. Raises: ValueError if not even one
    block fits.
    """
    wanted = [_wanted(window, shape.block_size, use, use.max_num_seqs) for window in shape.windows]
    if kv_cache_gb is not None:
        size = int(kv_cache_gb * _GIB)
        if size < sum(shape.block_bytes):
            block = sum(shape.block_bytes)
            raise ValueError(f"kv-cache-gb {kv_cache_gb} is smaller than one block ({block} bytes)")
        return _divided(size, shape.block_bytes, [size, *wanted[1:]])
    affordable = int(min(available_bytes * _SHARE_OF_FREE_MEMORY, _MOST_AUTOMATIC_BYTES))
    counts = _divided(affordable, shape.block_bytes, wanted)
    least = [_wanted(window, shape.block_size, use, 1) for window in shape.windows]
    raised = list(map(max, counts, least))
    excess = shape.bytes_of(raised) - max(affordable, shape.bytes_of(least))
    for kind, size in enumerate(shape.block_bytes):  # one kind needed more, so others have too much
        surplus = max(min(raised[kind] - least[kind], -(-excess // size)), 0)
        raised[kind] -= surplus
        excess -= surplus * size
    return tuple(raised)


def is_scarce(shape: CacheShape, use: CacheUse, *, kv_cache_gb: float | None, available_bytes: int) -> bool:
    """True if more cache would help `max_num_seqs` sequences of moderate length, or a single one of full length."""

    def bytes_of(length: int, num_sequences: int) -> int:
        lengths = replace(use, max_model_len=min(use.max_model_len, length))
        return shape.bytes_of([_wanted(window, shape.block_size, lengths, num_sequences) for window in shape.windows])

    longest, moderate = bytes_of(use.max_model_len, 1), bytes_of(_MODERATE_TOKENS, use.max_num_seqs)
    if kv_cache_gb is not None:
        return max(longest, moderate) > int(kv_cache_gb * _GIB)
    affordable = available_bytes * _SHARE_OF_FREE_MEMORY
    return longest > affordable or moderate > max(min(affordable, _MOST_AUTOMATIC_BYTES), longest)


def _wanted(window: int, block_size: int, use: CacheUse, num_sequences: int) -> int:
    longest = blocks_for(use.max_model_len, block_size)
    most = most_blocks(window, block_size)
    if not window or longest <= most:
        return longest * num_sequences
    pieces = 2 * blocks_for(use.max_batch_tokens, block_size)  # of prompts: they get half of what one window leaves
    return most * num_sequences + pieces


def _divided(total: int, block_bytes: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """The blocks of each kind within `total` bytes, none more than needed."""
    part = total // len(block_bytes)
    first, *others = wanted
    most = [first, *(min(count, max(part // size, 1)) for count, size in zip(others, block_bytes[1:], strict=True))]
    level = _level(total, block_bytes, most)
    return tuple(min(count, level) for count in most)


def _level(total: int, block_bytes: Sequence[int], most: Sequence[int]) -> int:
    """The largest equal number of blocks, up to each kind's bound, that fits `total` bytes."""
    unfilled = sum(block_bytes)
    for count, size in sorted(zip(most, block_bytes, strict=True)):
        if count * unfilled >= total:
            return total // unfilled
        total -= count * size
        unfilled -= size
    return max(most)
