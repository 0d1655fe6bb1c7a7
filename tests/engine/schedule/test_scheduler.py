"""The scheduler without a model: budgets, order, chunks, admission, preemption, forks."""

from __future__ import annotations

from array import array
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dragoman.engine.rolling.config import PrefixCacheMode, RollingConfig
from dragoman.engine.rolling.forward.batch import ScheduledBatch
from dragoman.engine.rolling.sequence import AddRequest, SequenceGroup, SequenceStatus
from tests.engine.integrity import check_scheduler
from tests.engine.naive import make_request
from tests.engine.schedule.bench import Bench
from tests.support.tables import table
from tests.support.tiers import examples


def planned(batch: ScheduledBatch) -> list[tuple[int, int]]:
    """(group key, number of tokens) of every entry."""
    return [(entry.sequence.group.key, entry.num_new_tokens) for entry in batch.entries]


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_batch_tokens", 3), ("max_num_seqs", 0), ("max_prompt_logprob_rows", 1), ("assumed_output_tokens", 0)],
)
def test_a_limit_that_could_stall_the_engine_is_refused(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"{field} is {value}, must be at least \d"):
        RollingConfig(**{field: value})  # type: ignore[arg-type]


def test_an_unknown_prefix_cache_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="'some', must be one of: prompt, all, off"):
        RollingConfig(prefix_cache="some")  # type: ignore[arg-type]


def test_prompts_are_admitted_together_and_then_decode_together() -> None:
    bench = Bench(RollingConfig())
    bench.add(5)
    bench.add(7)
    assert planned(bench.step()) == [(0, 5), (1, 7)]
    assert planned(bench.step()) == [(0, 1), (1, 1)]


def test_nothing_is_scheduled_without_work() -> None:
    bench = Bench(RollingConfig())
    assert not bench.scheduler.schedule()


def test_running_sequences_spend_the_budget_first_and_prompts_get_the_rest() -> None:
    bench = Bench(RollingConfig(max_batch_tokens=11))
    bench.add(2)
    bench.step()
    bench.add(30)
    assert planned(bench.step()) == [(0, 1), (1, 10)]
    assert planned(bench.step()) == [(0, 1), (1, 10)]


@table("num_prompt_tokens, max_batch_tokens, block_size", product(range(2, 40), [4, 5, 9], [1, 4, 32]))
def test_a_prompt_is_cut_without_a_lone_token(num_prompt_tokens: int, max_batch_tokens: int, block_size: int) -> None:
    bench = Bench(RollingConfig(max_batch_tokens=max_batch_tokens), block_size=block_size)
    sequence = bench.add(num_prompt_tokens).sequences[0]
    chunks = []
    while not sequence.num_generated_tokens:
        chunks.append(bench.step().num_tokens)
    assert sum(chunks) == num_prompt_tokens
    assert min(chunks) >= 2
    assert max(chunks) <= max_batch_tokens


def test_a_prompt_of_one_token_runs() -> None:
    bench = Bench(RollingConfig())
    bench.add(1)
    assert planned(bench.step()) == [(0, 1)]


def test_nobody_overtakes_a_request_that_does_not_fit() -> None:
    bench = Bench(RollingConfig(prefix_cache="off"), num_blocks=5)
    bench.add(14, max_tokens=2)
    bench.add(8, max_tokens=5)
    bench.add(1, max_tokens=5)
    assert planned(bench.step()) == [(0, 14)]
    assert planned(bench.step()) == [(0, 1)]
    assert planned(bench.step()) == [(1, 8), (2, 1)]


def test_no_more_sequences_run_than_allowed_counting_those_that_will_fork() -> None:
    bench = Bench(RollingConfig(max_num_seqs=4))
    bench.add(4, n=3, temperature=1.0)
    bench.add(4, n=2, temperature=1.0)
    bench.add(4)
    assert planned(bench.step()) == [(0, 4)]
    assert planned(bench.step()) == [(0, 1)] * 3


def test_sequences_beyond_the_limit_wait_and_run_later() -> None:
    bench = Bench(RollingConfig(max_num_seqs=2))
    group = bench.add(6, n=5, max_tokens=3, temperature=1.0)
    bench.step()
    assert [sequence.status for sequence in group.sequences].count(SequenceStatus.RUNNING) == 2
    while bench.scheduler.has_work:
        bench.step()
    assert [sequence.num_generated_tokens for sequence in group.sequences] == [3] * 5


def test_the_youngest_is_preempted_and_comes_back_first_with_its_tokens() -> None:
    bench = Bench(RollingConfig(prefix_cache="off", assumed_output_tokens=1), num_blocks=5)
    old, young = bench.add(7, max_tokens=12), bench.add(7, max_tokens=12)
    bench.add(1, max_tokens=1)
    while not bench.stats.num_preemptions:
        batch = bench.step()
    assert planned(batch) == [(0, 1)], "nobody is admitted in a step that preempted"
    assert young.sequences[0].status is SequenceStatus.WAITING
    assert young.sequences[0].num_generated_tokens > 0
    assert bench.scheduler.returning[0] is young.sequences[0]
    while bench.scheduler.has_work:
        bench.step()
    assert [group.sequences[0].num_generated_tokens for group in (old, young)] == [12, 12]
    assert bench.blocks.num_used_blocks == 0


def test_a_cached_prefix_is_not_computed_again_but_two_tokens_always_are() -> None:
    bench = Bench(RollingConfig())
    for num_prompt_tokens in (8, 8, 9, 10, 13):
        bench.add(num_prompt_tokens, max_tokens=1)
    assert planned(bench.step()) == [(0, 8), (1, 8), (2, 9), (3, 10), (4, 13)]
    for key, (num_prompt_tokens, num_left) in enumerate([(8, 4), (9, 5), (10, 2), (13, 5)], start=5):
        group = bench.add(num_prompt_tokens, max_tokens=1)
        assert planned(bench.step()) == [(key, num_left)]
        assert group.num_cached_tokens == num_prompt_tokens - num_left


@pytest.mark.parametrize(("mode", "num_cached"), [("prompt", 8), ("all", 16), ("off", 0)])
def test_the_mode_decides_which_blocks_are_reused(mode: PrefixCacheMode, num_cached: int) -> None:
    bench = Bench(RollingConfig(prefix_cache=mode))
    first = bench.add(9, max_tokens=9).sequences[0]
    while bench.scheduler.has_work:
        bench.step()
    request = make_request([*first.token_ids, 3], max_tokens=1)
    group = SequenceGroup(AddRequest(7, request), 7, bench.sampler)
    bench.scheduler.add(group)
    bench.step()
    assert group.num_cached_tokens == num_cached
    assert bench.stats.num_prefix_hits == num_cached


def test_prompt_logprobs_compute_the_whole_prompt_in_bounded_rows() -> None:
    bench = Bench(RollingConfig(max_prompt_logprob_rows=4))
    bench.add(10, max_tokens=1)
    bench.step()
    bench.add(10, max_tokens=1, prompt_logprobs=0)
    rows = []
    while bench.scheduler.has_work:
        rows.append([(entry.num_new_tokens, entry.num_prompt_rows) for entry in bench.step().entries])
    assert rows == [[(4, 4)], [(4, 4)], [(2, 1)]]


def test_drafts_are_computed_with_one_row_each_and_dropped_by_preemption() -> None:
    bench = Bench(RollingConfig())
    sequence = bench.add(5).sequences[0]
    bench.step()
    sequence.set_drafts(array("q", [7, 8, 9]))
    (entry,) = bench.scheduler.schedule().entries
    assert (entry.num_new_tokens, entry.num_sample_rows) == (4, 4)
    sequence.num_computed_tokens += 4
    sequence.drop_drafts()
    assert (sequence.num_tokens, sequence.num_computed_tokens, sequence.num_generated_tokens) == (6, 6, 1)
    sequence.set_drafts(array("q", [7]))
    sequence.reset()
    assert (sequence.num_tokens, sequence.num_computed_tokens) == (6, 0)


def test_removing_a_group_frees_its_blocks_wherever_its_sequences_are() -> None:
    bench = Bench(RollingConfig(max_num_seqs=2))
    forked = bench.add(6, n=4, temperature=1.0)
    bench.add(6)
    bench.step()
    assert bench.scheduler.remove(forked.key) is forked
    assert bench.scheduler.remove(forked.key) is None
    check_scheduler(bench.scheduler)
    assert planned(bench.step())[0][0] == 1
    bench.scheduler.remove(1)
    assert bench.blocks.num_used_blocks == 0
    assert not bench.scheduler.has_work


def test_beside_decoding_sequences_a_prompt_is_computed_within_its_own_budget() -> None:
    bench = Bench(RollingConfig())
    bench.add(3, max_tokens=30)
    bench.step()
    bench.add(20, max_tokens=30)
    assert planned(bench.step(8)) == [(0, 1), (1, 8)]
    bench.add(2, max_tokens=30)
    assert planned(bench.step(8)) == [(0, 1), (1, 8)], "the budget is that of all prompts together"
    assert planned(bench.step(0)) == [(0, 1)]
    assert planned(bench.step(8)) == [(0, 1), (1, 4), (2, 2)]


@pytest.mark.parametrize("budget", [17, 24, 28, 31])
def test_a_budget_is_spent_to_the_end_wherever_blocks_end(budget: int) -> None:
    bench = Bench(RollingConfig(max_batch_tokens=64), block_size=32)
    bench.add(128)
    pieces: list[int] = []
    while sum(pieces) < 128:
        batch = bench.step(budget)
        pieces.append(batch.num_prefill_tokens)
    assert len(pieces) <= -(-128 // budget) + 1
    assert all(piece >= budget - 1 for piece in pieces[:-2])


def test_a_budget_for_prompts_does_not_stop_them_when_nobody_decodes_any_more() -> None:
    bench = Bench(RollingConfig(prefix_cache="off", assumed_output_tokens=1), num_blocks=6)
    bench.add(12, max_tokens=9)  # 3 of the 6 blocks, soon 4
    bench.add(8, first_token=2, max_tokens=9)
    assert planned(bench.step(0)) == [(0, 12), (1, 8)], "nobody decodes yet"
    assert planned(bench.step(0)) == [(0, 1)], "the younger one was preempted for the older one's block"
    while 0 in bench.scheduler.groups:
        assert bench.step(0)
    assert planned(bench.step(0)) == [(1, 8)], "its prompt, and then what was decoded"
    assert planned(bench.step(0)) == [(1, 1)]


@settings(max_examples=examples(60))
@given(
    prompts=st.lists(st.integers(1, 20), min_size=1, max_size=30),
    max_tokens=st.integers(1, 24),
    num_blocks=st.integers(11, 40),  # 44 tokens are the longest
    data=st.data(),
)
def test_answers_of_the_foreseen_length_are_never_preempted(
    prompts: list[int], max_tokens: int, num_blocks: int, data: st.DataObject
) -> None:
    bench = Bench(RollingConfig(prefix_cache="off"), num_blocks=num_blocks)
    for prompt in prompts:
        bench.add(prompt, max_tokens=max_tokens)
        for _ in range(data.draw(st.integers(0, 5))):
            bench.step()
    while bench.scheduler.has_work:
        bench.step()
    assert bench.stats.num_preemptions == 0


def test_a_sequence_is_admitted_when_others_will_have_made_room_for_its_growth() -> None:
    bench = Bench(RollingConfig(prefix_cache="off"), num_blocks=6)
    bench.add(8, max_tokens=5)  # 3 blocks, soon free again
    bench.step()
    bench.add(8, max_tokens=16)  # 2 blocks now, 6 in the end
    assert (1, 8) in planned(bench.step())
    while bench.scheduler.has_work:
        bench.step()
    assert bench.stats.num_preemptions == 0


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals, aborts and steps; the books balance and every step keeps the rules."""

    @initialize(
        num_blocks=st.integers(10, 24),
        block_size=st.sampled_from([2, 4]),
        max_batch_tokens=st.integers(4, 24),
        max_num_seqs=st.integers(1, 6),
        mode=st.sampled_from(["prompt", "all", "off"]),
        assumed=st.sampled_from([1, 100]),
    )
    def build(
        self,
        num_blocks: int,
        block_size: int,
        max_batch_tokens: int,
        max_num_seqs: int,
        mode: PrefixCacheMode,
        assumed: int,
    ) -> None:
        self.config = RollingConfig(
            max_batch_tokens, max_num_seqs, mode, max_prompt_logprob_rows=6, assumed_output_tokens=assumed
        )
        self.bench = Bench(self.config, num_blocks=num_blocks, block_size=block_size)

    @rule(
        num_prompt_tokens=st.integers(1, 14),
        first_token=st.integers(0, 1),
        max_tokens=st.integers(1, 6),
        n=st.sampled_from([1, 1, 1, 2, 4]),
        prompt_logprobs=st.sampled_from([None, None, 0]),
    )
    def add(
        self, num_prompt_tokens: int, first_token: int, max_tokens: int, n: int, prompt_logprobs: int | None
    ) -> None:
        sampling: dict[str, Any] = {"n": n, "prompt_logprobs": prompt_logprobs, "temperature": 1.0}
        self.bench.add(num_prompt_tokens, first_token=first_token, max_tokens=max_tokens, **sampling)

    @precondition(lambda self: self.bench.scheduler.groups)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.bench.scheduler.remove(data.draw(st.sampled_from(sorted(self.bench.scheduler.groups))))

    @rule(num_steps=st.integers(1, 3), prefill_budget=st.sampled_from([None, None, 0, 1, 4, 9]))
    def step(self, num_steps: int, prefill_budget: int | None) -> None:
        for _ in range(num_steps):
            has_work = self.bench.scheduler.has_work
            batch = self.bench.step(prefill_budget)
            if batch.prefill_budget is not None:
                assert batch.num_prefill_tokens <= batch.prefill_budget
            assert bool(batch) == has_work
            assert batch.num_tokens == sum(entry.num_new_tokens for entry in batch.entries)
            assert batch.num_tokens <= self.config.max_batch_tokens
            assert batch.num_prompt_rows <= self.config.max_prompt_logprob_rows
            for entry in batch.entries:
                sequence = entry.sequence
                begin = sequence.num_computed_tokens - entry.num_new_tokens
                is_prompt = begin < sequence.num_prompt_tokens != 1
                assert not (is_prompt and entry.num_new_tokens == 1), "a prompt token runs alone"

    @invariant()
    def the_books_balance(self) -> None:
        check_scheduler(self.bench.scheduler)

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        for _ in range(2000):
            if not self.bench.scheduler.has_work:
                break
            self.bench.step()
        assert not self.bench.scheduler.has_work, "a request was never finished"
        assert self.bench.blocks.num_used_blocks == 0


SchedulerMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25)
TestScheduler = SchedulerMachine.TestCase
