"""The KV cache is sized once: from the option exactly, or from memory within bounds."""

from __future__ import annotations

import pytest

from dragoman.engine.rolling.cache_size import choose_num_blocks

MIB = 1024**2
GIB = 1024**3


def blocks(*, kv_cache_gb: float | None = None, available_bytes: int = 16 * GIB, max_num_seqs: int = 64) -> int:
    return choose_num_blocks(
        MIB, 32, max_model_len=320, max_num_seqs=max_num_seqs, kv_cache_gb=kv_cache_gb, available_bytes=available_bytes
    )


def test_the_option_is_taken_exactly() -> None:
    assert blocks(kv_cache_gb=0.5) == 512


def test_an_option_smaller_than_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kv-cache-gb 0\.0001 is smaller than one block"):
        blocks(kv_cache_gb=0.0001)


def test_automatic_size_is_what_all_sequences_need_at_most() -> None:
    assert blocks() == 64 * 10


def test_automatic_size_is_bounded_by_free_memory_but_holds_one_full_sequence() -> None:
    assert blocks(available_bytes=100 * MIB) == 50
    assert blocks(available_bytes=MIB) == 10
