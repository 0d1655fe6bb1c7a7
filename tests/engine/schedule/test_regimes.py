"""Sequences that outgrow the short regime begin anew in the long one, and share nothing with what was computed before."""

from __future__ import annotations

from dragoman.engine.rolling.blocks.block_manager import root_digest
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.forward.batch import ScheduledBatch
from dragoman.engine.rolling.sequence import SequenceStatus
from dragoman.types import FinishReason
from tests.engine.schedule.bench import Bench


def planned(batch: ScheduledBatch) -> list[tuple[int, int]]:
    """(group key, number of tokens) of every entry."""
    return [(entry.sequence.group.key, entry.num_new_tokens) for entry in batch.entries]


def test_a_sequence_begins_anew_with_the_first_token_beyond_the_boundary_and_keeps_its_answer() -> None:
    bench = Bench(RollingConfig(max_batch_tokens=8), long_context_from=12)
    sequence = bench.add(10, max_tokens=6).sequences[0]
    assert [planned(bench.step()) for _ in range(4)] == [[(0, 8)], [(0, 2)], [(0, 1)], [(0, 1)]]
    assert (sequence.num_tokens, sequence.is_long) == (13, False)
    answer = sequence.generated_ids
    assert planned(bench.step()) == [(0, 8)]
    assert sequence.is_long
    assert planned(bench.step()) == [(0, 2)], "the prompt by itself"
    assert planned(bench.step()) == [(0, 3)]
    assert sequence.generated_ids[:3] == answer
    assert planned(bench.step()) == [(0, 1)], "and goes on"
    assert bench.stats.num_preemptions == 0


def test_a_prompt_beyond_the_boundary_is_long_from_its_first_token_on() -> None:
    bench = Bench(RollingConfig(max_batch_tokens=8), long_context_from=12)
    sequence = bench.add(13, max_tokens=2).sequences[0]
    bench.step()
    assert sequence.is_long
    assert sequence.num_computed_tokens == 8


def test_prefixes_of_different_regimes_are_different() -> None:
    bench = Bench(RollingConfig(), long_context_from=12)
    cached = []
    for num_prompt_tokens in (12, 16, 12, 16, 20):
        group = bench.add(num_prompt_tokens, max_tokens=1)
        bench.step()
        cached.append(group.num_cached_tokens)
    assert cached == [0, 0, 8, 12, 16]


def test_roots_differ_by_salt_and_regime() -> None:
    roots = {root_digest(salt, is_long=is_long) for salt in ("", "a", "b") for is_long in (False, True)}
    assert len(roots) == 6


def test_a_sibling_in_another_regime_is_not_shared_with() -> None:
    bench = Bench(RollingConfig(max_num_seqs=2, prefix_cache="off"), long_context_from=11)
    first, second, third = bench.add(9, n=3, temperature=1.0).sequences
    while second.num_computed_tokens < 12:
        bench.step()
    assert (second.is_long, third.status, third.num_tokens) == (True, SequenceStatus.WAITING, 10)
    first.finish_reason = FinishReason.LENGTH
    bench.scheduler.finish(first)
    bench.step()
    assert third.status is SequenceStatus.RUNNING
    assert not third.is_long
    assert not set(bench.blocks.table(second.sequence_id)) & set(bench.blocks.table(third.sequence_id))
