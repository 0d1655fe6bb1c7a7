"""Who goes first, who shares what was computed, who is given up: priority, cache salt and deadlines of a request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.errors import DeadlineTooShort, QueueTimeout, RequestTimeout
from dragoman.types import EngineRequest
from tests.engine.fake_runner import FakeRunner
from tests.engine.naive import Collector, make_request, naive_sequence

VOCAB_SIZE = 24


class Clock:
    """Stands still until a test moves it."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def make_collector(clock: Clock | None = None, *, num_blocks: int = 64, **config: Any) -> Collector:
    runner = FakeRunner(num_blocks=num_blocks, vocab_size=VOCAB_SIZE)
    return Collector(EngineCore(runner, Sampler(VOCAB_SIZE), RollingConfig(**config), clock=clock or Clock()))


def asking(prompt_ids: Sequence[int], max_tokens: int = 5, *, n: int = 1, **fields: Any) -> EngineRequest:
    """A request that generates all its tokens; `fields` are the engine request's."""
    plain = make_request(prompt_ids, max_tokens, ignore_eos=True, n=n, temperature=1.0 if n > 1 else 0.0)
    return msgspec.structs.replace(plain, **fields)


def order_of_first_outputs(collector: Collector, num_requests: int) -> list[int]:
    """The keys in the order in which their requests got their first tokens; keys of one step by number."""
    order: list[int] = []
    while len(order) < num_requests:
        collector.step()
        order += [key for key in sorted(collector.outputs) if key not in order]
    return order


# --- priority ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("priorities", "order"),
    [([0, 0, 0, 0], [0, 1, 2, 3]), ([0, 1, 0, 2], [3, 1, 0, 2]), ([-1, 0, -1, 0], [1, 3, 0, 2])],
)
def test_of_those_that_wait_the_highest_priority_runs_first_and_equals_in_order(
    priorities: list[int], order: list[int]
) -> None:
    collector = make_collector(max_num_seqs=1)
    for key, priority in enumerate(priorities):
        collector.add(key, asking([1, 2, key], priority=priority))
    assert order_of_first_outputs(collector, 4) == order
    collector.run()
    for key in range(4):
        assert collector.sequence(key).token_ids == naive_sequence(asking([1, 2, key]), 0, VOCAB_SIZE).token_ids


def test_a_higher_priority_interrupts_nobody_who_runs() -> None:
    collector = make_collector(max_num_seqs=1)
    collector.add(0, asking([1, 2]))
    collector.step()
    collector.add(1, asking([1, 3], priority=9))
    collector.run()
    assert collector.core.stats.num_preemptions == 0
    assert list(collector.outputs) == [0, 1]


def test_where_blocks_run_out_the_lowest_priority_gives_way_whenever_it_came() -> None:
    collector = make_collector(num_blocks=8, assumed_output_tokens=1)
    collector.add(0, asking([1, 2, 3], 18))
    collector.step()
    collector.add(1, asking([4, 5, 6], 18, priority=1))
    while not collector.core.stats.num_preemptions:
        collector.step()
    num_before = len(collector.sequence(0).token_ids)
    collector.step()
    assert len(collector.sequence(0).token_ids) == num_before, "the one of higher priority was preempted"
    collector.run()
    for key, prompt in enumerate(([1, 2, 3], [4, 5, 6])):
        assert collector.sequence(key).token_ids == naive_sequence(asking(prompt, 18), 0, VOCAB_SIZE).token_ids


def test_beams_whose_sibling_waits_behind_a_search_of_higher_priority_make_room_for_it() -> None:
    """They can compute nothing without the sibling that lost its blocks, and the search does not fit beside them."""

    def search(prompt_ids: Sequence[int], priority: int) -> EngineRequest:
        return msgspec.structs.replace(make_request(prompt_ids, 10, num_beams=4, ignore_eos=True), priority=priority)

    arrivals = {
        1: asking([20, 14, 3, 4, 22, 15, 17, 9, 8, 8], 9),
        3: asking([5, 12, 10, 17, 1, 4, 18, 17, 3, 21, 19, 19], 12),
        5: search([19], 0),
        11: search([1, 3, 23, 15, 20], 2),
    }
    config: dict[str, Any] = {"num_blocks": 16, "max_num_seqs": 6, "max_batch_tokens": 8}
    collector = make_collector(**config)
    for key in range(100, 108):  # from which the forecast learns that answers are short
        collector.add(key, asking([1, 2], 1))
    collector.run()
    for step in range(12):
        if step in arrivals:
            collector.add(step, arrivals[step])
        collector.step()
    collector.run()
    assert not collector.errors
    for key, request in arrivals.items():
        alone = make_collector(**config)
        alone.add(0, request)
        alone.run()
        assert collector.sequence(key) == alone.sequence(0)


# --- cache salt -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix_cache", ["prompt", "all"])
def test_prompts_are_shared_among_requests_of_the_same_salt_only(prefix_cache: str) -> None:
    collector = make_collector(prefix_cache=prefix_cache)
    salts = ["", "", "a", "a", "b", ""]
    for key, salt in enumerate(salts):
        collector.add(key, asking(range(1, 10), cache_salt=salt))
        collector.run()
    cached = [collector.outputs[key][0].num_cached_tokens for key in range(len(salts))]
    assert cached == [0, 4, 0, 4, 0, 4]
    assert len({tuple(collector.sequence(key).token_ids) for key in range(len(salts))}) == 1


def test_a_salt_made_of_a_blocks_tokens_finds_no_block_behind_it() -> None:
    tokens = [65, 66, 67, 68]  # as 64-bit words, which a text can hold too
    prompt = [token_id % VOCAB_SIZE for token_id in tokens]
    salt = b"".join(token_id.to_bytes(8, "little") for token_id in prompt).decode()
    collector = make_collector()
    collector.add(0, asking([*prompt, 7, 8, 9, 10, 11, 12]))
    collector.run()
    collector.add(1, asking([7, 8, 9, 10, 11, 12], cache_salt=salt))
    collector.run()
    assert collector.outputs[1][0].num_cached_tokens == 0


# --- deadline ---------------------------------------------------------------------------------------------------------


def test_a_request_is_given_up_at_its_deadline_and_others_go_on() -> None:
    clock = Clock()
    collector = make_collector(clock)
    collector.add(0, asking([1, 2], 9, deadline_s=time.time() + 60))
    collector.add(1, asking([1, 3], 9))
    collector.add(2, asking([1, 4], 9, deadline_s=time.time() + 600))
    for _ in range(3):
        collector.step()
    clock.now_s += 61
    collector.run()
    assert isinstance(collector.errors[0], RequestTimeout)
    assert list(collector.errors) == [0]
    assert [len(collector.sequence(key).token_ids) for key in range(3)] == [3, 9, 9]
    assert collector.core.stats.num_used_blocks == 0


@pytest.mark.parametrize("n", [1, 3])
def test_a_deadline_ends_requests_that_wait_and_all_their_sequences(n: int) -> None:
    clock = Clock()
    collector = make_collector(clock, max_num_seqs=3)
    for key in range(2):
        collector.add(key, asking([1, 2, key], 9, n=n, deadline_s=time.time() + 60))
    collector.step()
    clock.now_s += 61
    collector.run()
    assert [type(collector.errors[key]) for key in range(2)] == [RequestTimeout] * 2
    assert collector.core.stats.num_used_blocks == 0


def test_what_comes_after_its_deadline_never_runs() -> None:
    collector = make_collector()
    collector.add(0, asking([1, 2], deadline_s=time.time() - 1))
    collector.run()
    assert "deadline" in collector.errors[0].message
    assert collector.core.stats.num_steps == 0


def test_a_deadline_after_the_end_changes_nothing() -> None:
    clock = Clock()
    collector = make_collector(clock)
    collector.add(0, asking([1, 2], deadline_s=time.time() + 60))
    collector.run()
    clock.now_s += 61
    collector.add(1, asking([1, 2]))
    collector.run()
    assert not collector.errors


def test_a_request_that_has_not_begun_in_time_is_given_up_and_one_that_has_goes_on() -> None:
    clock = Clock()
    collector = make_collector(clock, max_num_seqs=1)
    for key in range(3):
        collector.add(key, asking([1, 2, key], 9, start_by_s=time.time() + (60 if key < 2 else 600)))
    collector.step()
    clock.now_s += 61
    collector.run()
    assert {key: type(error) for key, error in collector.errors.items()} == {1: QueueTimeout}
    assert [len(collector.sequence(key).token_ids) for key in range(3)] == [9, 0, 9]


def test_a_preempted_request_has_begun() -> None:
    clock = Clock()
    collector = make_collector(clock, num_blocks=8, assumed_output_tokens=1)
    for key in range(2):
        collector.add(key, asking([4, 5, key], 18, start_by_s=time.time() + 60))
    while not collector.core.stats.num_preemptions:
        collector.step()
    clock.now_s += 61
    collector.run()
    assert not collector.errors


# --- deadlines that cannot be met -------------------------------------------------------------------------------------

TOKEN_S = 0.5


def make_timed(clock: Clock, **config: Any) -> Collector:
    """An engine whose tokens take TOKEN_S each, as it has found out."""

    def take_time(batch: ForwardBatch) -> None:
        clock.now_s += TOKEN_S * len(batch.input_ids)

    runner = FakeRunner(num_blocks=256, vocab_size=VOCAB_SIZE, before_forward=take_time)
    core = EngineCore(
        runner, Sampler(VOCAB_SIZE), RollingConfig(**{"max_batch_tokens": 16, "max_num_seqs": 2, **config}), clock=clock
    )
    collector = Collector(core)
    collector.add(1000, asking([index % 7 for index in range(64)], 1))
    collector.run()
    return collector


def fresh(key: int, size: int) -> list[int]:
    """A prompt that shares no block with those of other keys."""
    return [key % VOCAB_SIZE, key // VOCAB_SIZE, *[(key + index) % VOCAB_SIZE for index in range(size - 2)]]


@pytest.mark.parametrize(("seconds", "is_possible"), [(19.9, False), (20.5, True)])
def test_a_prompt_that_takes_longer_than_the_deadline_is_refused_before_it_begins(
    seconds: float, is_possible: bool
) -> None:
    collector = make_timed(Clock())
    num_steps = collector.core.stats.num_steps
    collector.add(1, asking(fresh(1, 40), 1, deadline_s=time.time() + seconds))
    collector.run()
    if is_possible:
        assert collector.sequence(1).token_ids
        return
    error = collector.errors[1]
    assert isinstance(error, DeadlineTooShort)
    assert error.needed_s == pytest.approx(20.0)
    assert collector.core.stats.num_steps == num_steps


def test_what_waits_before_counts_and_what_waits_behind_does_not() -> None:
    collector = make_timed(Clock(), max_num_seqs=1)
    collector.add(0, asking([1, 2], 9))
    collector.step()
    collector.add(1, asking(fresh(1, 40), 1))
    collector.add(2, asking(fresh(2, 40), 1, priority=-1))
    collector.add(3, asking(fresh(3, 40), 1, caller="b"))
    collector.add(4, asking(fresh(4, 20), 1, deadline_s=time.time() + 29))
    collector.add(5, asking(fresh(5, 20), 1, deadline_s=time.time() + 29, caller="c"))  # its turn may be at once
    collector.step()
    assert list(collector.errors) == [4]
    assert collector.errors[4].needed_s >= 29  # type: ignore[attr-defined]


@pytest.mark.parametrize("prefix_cache", ["prompt", "off"])
def test_cached_and_common_blocks_cost_nothing(prefix_cache: str) -> None:
    collector = make_timed(Clock(), prefix_cache=prefix_cache)
    known = [index % 7 for index in range(64)]
    common = fresh(3, 32)
    collector.add(1, asking([*known, 8], 1, deadline_s=time.time() + 4))
    collector.add(2, asking([*common, 1], 1))
    collector.add(3, asking([*common, 2], 1, deadline_s=time.time() + 20))
    collector.step()
    assert list(collector.errors) == ([] if prefix_cache == "prompt" else [1, 3])


def test_nothing_is_refused_before_it_is_known_what_a_full_step_takes() -> None:
    collector = make_collector(max_batch_tokens=64)
    collector.add(0, asking([1, 2], 9))
    collector.run()
    collector.add(1, asking([1] * 60, 1, deadline_s=time.time() + 0.5))
    collector.run()
    assert not collector.errors
