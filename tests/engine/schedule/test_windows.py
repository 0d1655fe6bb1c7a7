"""Layers with windows: how many blocks sequences take of them, and that nobody waits for more than that."""

from __future__ import annotations

import pytest

from dragoman.engine.rolling.blocks.block_manager import longest_chunk, most_blocks
from dragoman.engine.rolling.config import PrefixCacheMode, RollingConfig
from dragoman.engine.rolling.sequence import SequenceStatus
from tests.engine.integrity import check_scheduler
from tests.engine.schedule.bench import Bench

BLOCK_SIZE = 4
WINDOW = 10


def held(bench: Bench, sequence_id: int, kind: int) -> int:
    return len(bench.blocks.table(sequence_id, kind))


def test_a_long_prompt_in_pieces_takes_a_window_and_a_piece_of_blocks() -> None:
    bench = Bench(RollingConfig(max_batch_tokens=8), num_blocks=[40, 8], windows=(0, WINDOW))
    sequence = bench.add(100, max_tokens=30).sequences[0]
    num_steps = 0
    while bench.scheduler.has_work:
        bench.step()
        num_steps += 1
        if sequence.status is SequenceStatus.RUNNING:
            assert held(bench, sequence.sequence_id, 1) <= most_blocks(WINDOW, BLOCK_SIZE)
    assert num_steps == 13 + 29
    assert bench.stats.num_preemptions == 0


def test_where_a_window_leaves_little_room_pieces_are_shorter_and_still_computed() -> None:
    fewest = most_blocks(WINDOW, BLOCK_SIZE) + 1
    bench = Bench(RollingConfig(max_batch_tokens=64), num_blocks=fewest, windows=(WINDOW,))
    bench.add(100, max_tokens=2)
    assert bench.step().num_tokens == longest_chunk(bench.blocks.pools[0], BLOCK_SIZE, 64) == 5
    while bench.scheduler.has_work:
        bench.step()
    assert bench.stats.num_preemptions == 0


def test_with_windows_alone_sequences_of_any_length_run_side_by_side_in_little_room() -> None:
    bench = Bench(
        RollingConfig(max_batch_tokens=16), num_blocks=4 * most_blocks(WINDOW, BLOCK_SIZE) + 4, windows=(WINDOW,)
    )
    for first_token in range(4):
        bench.add(50, first_token=first_token, max_tokens=50)
    most = 0
    while bench.scheduler.has_work:
        bench.step()
        most = max(most, len(bench.scheduler.running))
    assert most == 4
    assert bench.stats.num_preemptions == 0


def test_nobody_is_admitted_whose_window_would_take_the_others_blocks() -> None:
    bench = Bench(
        RollingConfig(max_batch_tokens=16),
        num_blocks=[400, 2 * most_blocks(WINDOW, BLOCK_SIZE) + 4],
        windows=(0, WINDOW),
    )
    for first_token in range(4):
        bench.add(30, first_token=first_token, max_tokens=20)
    while bench.scheduler.has_work:
        bench.step()
        assert len(bench.scheduler.running) <= 2
    assert bench.stats.num_preemptions == 0


@pytest.mark.parametrize(("mode", "num_cached"), [("prompt", 40), ("off", 0)])
def test_a_prompt_goes_on_behind_one_that_it_begins_with(mode: PrefixCacheMode, num_cached: int) -> None:
    bench = Bench(RollingConfig(max_batch_tokens=16, prefix_cache=mode), num_blocks=[64, 24], windows=(0, WINDOW))
    bench.add(40, max_tokens=20)
    while bench.scheduler.has_work:
        bench.step()
    group = bench.add(60, max_tokens=1)
    bench.step()
    assert group.num_cached_tokens == num_cached


def test_a_prompt_that_shares_less_than_the_window_before_its_end_is_cached_for_is_computed_anew() -> None:
    bench = Bench(RollingConfig(max_batch_tokens=16), num_blocks=[64, 7], windows=(0, WINDOW))
    bench.add(60, max_tokens=20)
    while bench.scheduler.has_work:
        bench.step()
    group = bench.add(20, max_tokens=1)
    bench.step()
    assert group.num_cached_tokens == 0


def test_a_running_sibling_that_has_passed_the_prompt_is_not_shared_with() -> None:
    """Its blocks would do for the layers that keep everything, but not for the others: the prompt is computed again."""
    bench = Bench(RollingConfig(max_num_seqs=2, prefix_cache="off"), num_blocks=[64, 64], windows=(0, WINDOW))
    group = bench.add(12, n=3, max_tokens=30, temperature=1.0)
    third = group.sequences[2]
    while third.status is not SequenceStatus.RUNNING:
        bench.step()
    assert bench.blocks.table(third.sequence_id) is not None
    while bench.scheduler.has_work:
        bench.step()
    assert [sequence.num_generated_tokens for sequence in group.sequences] == [30] * 3


def test_a_beam_that_follows_a_preempted_one_begins_anew_if_its_windows_have_passed_the_prompt() -> None:
    bench = Bench(RollingConfig(prefix_cache="off", assumed_output_tokens=1), num_blocks=[15, 40], windows=(0, 3))
    older = bench.add(24)
    group = bench.add(10, first_token=5, n=3, temperature=1.0)
    _, second, third = group.sequences
    while third.status is not SequenceStatus.WAITING:
        bench.step()
    assert second.status is SequenceStatus.RUNNING
    bench.scheduler.refork(third, second)
    assert second.num_computed_tokens == 0
    assert [held(bench, second.sequence_id, kind) for kind in (0, 1)] == [0, 0]
    bench.scheduler.remove(older.key)
    while second.num_computed_tokens < 10:
        bench.step()
    check_scheduler(bench.scheduler)
