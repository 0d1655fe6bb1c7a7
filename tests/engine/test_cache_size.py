"""The KV cache is sized once: from the option exactly, or from memory within bounds; and divided between its kinds."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.engine.rolling.blocks.block_manager import CachePool, longest_chunk, longest_sequence, most_blocks
from dragoman.engine.rolling.needs import CacheShape, CacheUse, choose_num_blocks, is_scarce

KIB = 1024
MIB = 1024**2
GIB = 1024**3


def blocks(
    *,
    kv_cache_gb: float | None = None,
    available_bytes: int = 16 * GIB,
    max_num_seqs: int = 64,
    max_model_len: int = 320,
    windows: tuple[int, ...] = (0,),
    block_bytes: tuple[int, ...] | None = None,
) -> tuple[int, ...]:
    shape = CacheShape(block_bytes or (MIB,) * len(windows), windows, 32)
    use = CacheUse(max_model_len, max_num_seqs, max_batch_tokens=512)
    return choose_num_blocks(shape, use, kv_cache_gb=kv_cache_gb, available_bytes=available_bytes)


def test_the_option_is_taken_exactly() -> None:
    assert blocks(kv_cache_gb=0.5) == (512,)


@pytest.mark.parametrize("windows", [(0,), (0, 64), (64,)])
def test_an_option_smaller_than_a_block_of_each_kind_is_refused(windows: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"kv-cache-gb 0\.0009 is smaller than one block"):
        blocks(kv_cache_gb=0.0009, windows=windows)


def test_automatic_size_is_what_all_sequences_need_at_most() -> None:
    assert blocks() == (64 * 10,)


def test_automatic_size_is_bounded_by_free_memory_but_holds_one_full_sequence() -> None:
    assert blocks(available_bytes=100 * MIB) == (50,)
    assert blocks(available_bytes=MIB) == (10,)


def test_windows_get_what_all_sequences_and_pieces_of_prompts_take_and_the_first_kind_the_rest() -> None:
    wanted = 4 * most_blocks(64, 32) + 2 * 16
    assert blocks(kv_cache_gb=0.5, max_num_seqs=4, max_model_len=4096, windows=(0, 64)) == (512 - wanted, wanted)
    assert blocks(max_num_seqs=4, max_model_len=4096, windows=(0, 64)) == (4 * 128, wanted)


def test_a_kind_with_a_window_has_no_more_blocks_than_the_first_and_no_more_than_its_part_of_the_memory() -> None:
    assert blocks(kv_cache_gb=0.0625, max_model_len=4096, windows=(0, 512)) == (32, 32)
    assert blocks(kv_cache_gb=0.0625, max_model_len=4096, windows=(0, 512), block_bytes=(3 * MIB, MIB)) == (16, 16)
    assert blocks(kv_cache_gb=0.0625, max_model_len=4096, windows=(0, 512), block_bytes=(MIB, 3 * MIB)) == (34, 10)
    assert blocks(max_num_seqs=3, max_model_len=320, windows=(0, 512)) == (30, 30), "sequences shorter than the window"


def test_windows_alone_take_what_they_are_given_or_what_they_can_use() -> None:
    assert blocks(kv_cache_gb=0.5, max_model_len=1 << 20, windows=(64,)) == (512,)
    assert blocks(max_num_seqs=4, max_model_len=1 << 20, windows=(64,)) == (4 * 3 + 32,)


@given(
    windows=st.sampled_from([(0,), (0, 30), (0, 128, 4096), (512,), (128, 1024)]),
    sizes=st.lists(st.integers(1000, 4 * MIB), min_size=3, max_size=3),
    available=st.one_of(st.just(0), st.integers(0, 40 * GIB)),
    kv_cache_gb=st.one_of(st.none(), st.floats(0.02, 20.0)),
    max_model_len=st.integers(1, 200_000),
    max_num_seqs=st.integers(1, 100),
)
@example(
    windows=(0, 30), sizes=[1000] * 3, available=140_000, kv_cache_gb=None, max_model_len=1121, max_num_seqs=2
)  # one kind must get more than its part, so the other gets less
@example(
    windows=(0, 30), sizes=[1000] * 3, available=12_000, kv_cache_gb=None, max_model_len=1, max_num_seqs=3
)  # no prompt is longer than a window, so no piece is
@example(
    windows=(0, 128, 4096), sizes=[1000] * 3, available=36_000, kv_cache_gb=None, max_model_len=34, max_num_seqs=3
)  # the blocks of such a sequence are enough for any, in smaller pieces
def test_the_blocks_stay_within_the_memory_and_run_a_sequence_of_full_length(
    windows: tuple[int, ...],
    sizes: list[int],
    available: int,
    kv_cache_gb: float | None,
    max_model_len: int,
    max_num_seqs: int,
) -> None:
    shape = CacheShape(tuple(sizes[: len(windows)]), windows, 32)
    use = CacheUse(max_model_len, max_num_seqs, max_batch_tokens=512)
    found = choose_num_blocks(shape, use, kv_cache_gb=kv_cache_gb, available_bytes=available)
    if kv_cache_gb is not None:
        assert 0 <= int(kv_cache_gb * GIB) - shape.bytes_of(found) < sum(shape.block_bytes)
        return
    least = choose_num_blocks(shape, use, kv_cache_gb=None, available_bytes=0)
    assert shape.bytes_of(found) <= max(available / 2, shape.bytes_of(least))
    for count, window in zip(found, windows, strict=True):
        pool = CachePool(count, window)
        longest = longest_sequence(pool, 32)
        assert longest is None or longest >= max_model_len
        is_short = max_model_len <= most_blocks(window, 32) * 32
        assert longest is not None or is_short or longest_chunk(pool, 32, 512) == 512


@pytest.mark.parametrize(
    ("max_model_len", "kv_cache_gb", "available_bytes", "expected"),
    [
        (4096, 1.0, 0, False),  # 64 sequences of 1,024 tokens, 16 KiB each
        (4096, 0.99, 64 * GIB, True),
        (512, 0.5, 0, False),  # no sequence becomes longer than 512
        (131_072, 1.0, 64 * GIB, True),  # one of full length takes 2 GiB
        (131_072, 2.0, 0, False),
        (4096, None, 2 * GIB, False),  # half of it
        (4096, None, 2 * GIB - MIB, True),
        (131_072, None, 4 * GIB, False),
        (131_072, None, 4 * GIB - MIB, True),
    ],
)
def test_memory_is_scarce_if_it_holds_too_few_sequences_of_a_moderate_length_or_none_of_full_length(
    max_model_len: int, kv_cache_gb: float | None, available_bytes: int, expected: bool
) -> None:
    shape, use = CacheShape((32 * 16 * KIB,), (0,), 32), CacheUse(max_model_len, 64, 512)
    assert is_scarce(shape, use, kv_cache_gb=kv_cache_gb, available_bytes=available_bytes) is expected


def test_a_cache_that_a_single_long_sequence_makes_large_has_room_for_many_others() -> None:
    shape = CacheShape((32 * 320 * KIB,), (0,), 32)
    assert is_scarce(shape, CacheUse(8192, 64, 512), kv_cache_gb=None, available_bytes=512 * GIB)
    assert not is_scarce(shape, CacheUse(131_072, 64, 512), kv_cache_gb=None, available_bytes=512 * GIB)


def test_layers_with_windows_count_with_what_they_keep() -> None:
    use = CacheUse(131_072, 4, 512)
    everything, windows = CacheShape((MIB,), (0,), 32), CacheShape((MIB,), (64,), 32)
    assert is_scarce(everything, use, kv_cache_gb=1, available_bytes=0)
    assert not is_scarce(windows, use, kv_cache_gb=1, available_bytes=0)
