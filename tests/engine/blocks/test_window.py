"""The arithmetic of windows: what it says is what counting comes to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dragoman.engine.rolling.blocks.block_manager import (
    MIN_CHUNK,
    CachePool,
    first_visible_block,
    longest_chunk,
    longest_sequence,
    most_blocks,
)

windows = st.integers(1, 20)
block_sizes = st.sampled_from([1, 2, 3, 4, 8])


def num_touched(first: int, end: int, block_size: int) -> int:
    """Blocks with a position in [first, end)."""
    return len({position // block_size for position in range(first, end)})


@given(windows, block_sizes, st.integers(0, 60))
def test_the_first_visible_block_holds_the_first_visible_token(window: int, block_size: int, position: int) -> None:
    seen = [other for other in range(position + 1) if position - other < window]
    assert first_visible_block(position, window, block_size) == seen[0] // block_size
    assert first_visible_block(position, 0, block_size) == 0


@given(windows, block_sizes)
def test_a_window_touches_most_blocks_somewhere_and_never_more(window: int, block_size: int) -> None:
    counts = [num_touched(first, first + window, block_size) for first in range(block_size)]
    assert most_blocks(window, block_size) == max(counts)


@given(windows, block_sizes, st.integers(1, 40), st.integers(MIN_CHUNK, 64))
def test_the_longest_chunk_fits_beside_its_window_in_a_pool_for_any_length(
    window: int, block_size: int, num_blocks: int, max_batch_tokens: int
) -> None:
    pool = CachePool(num_blocks, window)
    chunk = longest_chunk(pool, block_size, max_batch_tokens)
    assert MIN_CHUNK <= chunk <= max_batch_tokens
    if longest_sequence(pool, block_size) is None:
        needed = [
            num_touched(max(begin - window + 1, 0), begin + chunk, block_size) for begin in range(window + block_size)
        ]
        assert max(needed) <= num_blocks


@given(block_sizes, st.integers(1, 40), windows)
def test_a_pool_that_is_too_small_for_that_takes_what_fits_it_whole(
    block_size: int, num_blocks: int, window: int
) -> None:
    assert longest_sequence(CachePool(num_blocks), block_size) == num_blocks * block_size
    assert longest_sequence(CachePool(num_blocks, window), block_size) in (None, num_blocks * block_size)
    assert longest_sequence(CachePool(most_blocks(window, block_size) + MIN_CHUNK, window), block_size) is None
