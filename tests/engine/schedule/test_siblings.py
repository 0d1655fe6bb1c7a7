"""The sequences of one group share their prompt's blocks, also after some of them, or all, were preempted."""

from __future__ import annotations

import pytest

from dragoman.engine.rolling.config import PrefixCacheMode, RollingConfig
from dragoman.engine.rolling.sequence import SequenceGroup, SequenceStatus
from tests.engine.schedule.bench import Bench


def have_one_prompt(bench: Bench, group: SequenceGroup, num_blocks: int) -> bool:
    """True if all the group's sequences run, with the same blocks at the front."""
    assert all(sequence.status is SequenceStatus.RUNNING for sequence in group.sequences)
    fronts = [bench.blocks.table(sequence.sequence_id)[:num_blocks] for sequence in group.sequences]
    return all(front == fronts[0] for front in fronts)


@pytest.mark.parametrize("mode", ["prompt", "all", "off"])
def test_siblings_that_were_preempted_share_their_prompt_again(mode: PrefixCacheMode) -> None:
    bench = Bench(RollingConfig(prefix_cache=mode, assumed_output_tokens=1), num_blocks=12)
    older = bench.add(24)
    group = bench.add(10, first_token=5, n=3, temperature=1.0)
    while bench.stats.num_preemptions < 3:
        bench.step()
    bench.scheduler.remove(older.key)
    for _ in range(3):
        bench.step()
    assert have_one_prompt(bench, group, 2)


@pytest.mark.parametrize("mode", ["prompt", "all", "off"])
def test_those_that_follow_a_preempted_sibling_keep_the_prompt(mode: PrefixCacheMode) -> None:
    """Beams may all go on from one that was preempted when its next tokens were known: each computed the prompt anew."""
    bench = Bench(RollingConfig(prefix_cache=mode, assumed_output_tokens=1), num_blocks=13)
    older = bench.add(24)
    group = bench.add(10, first_token=5, n=3, temperature=1.0)
    first, second, third = group.sequences
    while third.status is not SequenceStatus.WAITING:
        bench.step()
    assert second.status is SequenceStatus.RUNNING
    for sequence in (first, second):
        bench.scheduler.refork(third, sequence)
        assert sequence.token_ids == third.token_ids
        assert sequence.num_computed_tokens == 8
    bench.scheduler.remove(older.key)
    for _ in range(3):
        bench.step()
    assert have_one_prompt(bench, group, 2)
