"""Who of those that wait begins next: shares of callers, order within one, priorities, and what nobody can do to others."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.schedule.fair_queue import COMPLETION_WEIGHT, PROMPT_WEIGHT, FairQueue
from dragoman.engine.rolling.sequence import AddRequest, SequenceGroup
from tests.engine.fake_runner import FakeRunner
from tests.engine.naive import Collector, make_request
from tests.engine.schedule.bench import Bench
from tests.support.tiers import examples

VOCAB_SIZE = 16


def asking(
    caller: str, num_prompt: int = 3, max_tokens: int = 5, priority: int = 0, number: int = 0, share: int = 1
) -> Any:
    """A request that generates all its tokens; prompts of different numbers have no block in common."""
    prompt = [(number + position * (number + 1)) % VOCAB_SIZE for position in range(num_prompt)]
    request = make_request(prompt, max_tokens, ignore_eos=True)
    return msgspec.structs.replace(request, caller=caller, priority=priority, share=share)


class Waiting:
    """A queue without a scheduler, and the requests that were put into it."""

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        self.queue = FairQueue(lambda: self.running)
        self._sampler = Sampler(VOCAB_SIZE)
        self._num_added = 0

    def add(self, caller: str, num_prompt: int = 4, priority: int = 0, share: int = 1) -> SequenceGroup:
        key = self._num_added
        group = SequenceGroup(
            AddRequest(key, asking(caller, num_prompt, priority=priority, share=share)), key, self._sampler
        )
        self.queue.add(group)
        self._num_added += 1
        return group

    def begin(self) -> SequenceGroup:
        """The next one begins, and its prompt is computed."""
        group = self.queue.head()
        self.queue.remove(group)
        self.queue.shares.charge(group.request.caller, num_prompt=len(group.request.prompt_ids))
        return group

    def callers(self, count: int) -> str:
        """The first letters of who begins next."""
        return "".join(self.begin().request.caller[0] for _ in range(count))


def make_collector(**config: Any) -> Collector:
    runner = FakeRunner(num_blocks=4096, vocab_size=VOCAB_SIZE)
    return Collector(EngineCore(runner, Sampler(VOCAB_SIZE), RollingConfig(**{"prefix_cache": "off", **config})))


def steps_to_first_token(collector: Collector, key: int) -> int:
    count = 0
    while not collector.outputs[key]:
        collector.step()
        count += 1
    return count


# --- the queue alone --------------------------------------------------------------------------------------------------


arrivals = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 1), st.sampled_from([1, 1, 3])), max_size=12
)


@settings(max_examples=examples(100))
@given(arrivals, arrivals, st.integers(0, 12))
def test_the_order_that_is_told_is_that_in_which_they_begin(first: Any, later: Any, num_begun: int) -> None:
    waiting = Waiting()
    for caller, num_prompt, priority, share in first:
        waiting.add(caller, num_prompt, priority, share)
    for _ in range(min(num_begun, len(waiting.queue))):
        waiting.begin()
    for caller, num_prompt, priority, share in later:
        waiting.add(caller, num_prompt, priority, share)
    if len(waiting.queue):
        waiting.queue.head()  # whoever is found to be next stays it
    told = list(waiting.queue.in_order())
    assert [waiting.begin() for _ in range(len(waiting.queue))] == told


def test_a_caller_gets_as_many_turns_as_its_share_says() -> None:
    waiting = Waiting()
    for _ in range(40):
        waiting.add("a", share=3)
        waiting.add("b")
    begun = waiting.callers(40)
    assert begun.count("a") == 30
    assert "bb" not in begun


def test_a_generated_token_counts_twice_as_much_as_a_prompts() -> None:
    """As in the source of the virtual token counter."""
    waiting = Waiting()
    waiting.add("a")
    waiting.add("b")
    waiting.queue.shares.charge("a", num_prompt=10)
    waiting.queue.shares.charge("b", num_generated=6)
    assert waiting.queue.shares.counters() == {"a": 10, "b": 12}
    assert waiting.callers(1) == "a"


def test_one_caller_is_served_in_the_order_of_arrival() -> None:
    waiting = Waiting()
    groups = [waiting.add("a", size) for size in (9, 1, 5, 2)]
    assert [waiting.begin() for _ in groups] == groups
    assert len(waiting.queue) == 0


def test_whoever_was_given_least_is_next_and_length_counts() -> None:
    waiting = Waiting()
    for _ in range(8):
        waiting.add("large", 12)
        waiting.add("small", 4)
    assert waiting.callers(8) == "lssslsss"


def test_tokens_of_those_who_run_count_before_they_have_ended() -> None:
    waiting = Waiting()
    for _ in range(4):
        waiting.add("a")
        waiting.add("b")
    waiting.running = {"a": 100}
    assert waiting.callers(4) == "bbbb"


def test_who_was_away_has_saved_nothing_up_and_who_stays_loses_nothing() -> None:
    waiting = Waiting()
    for _ in range(40):
        waiting.add("a")
    waiting.add("b")
    assert waiting.callers(30).count("b") == 1
    for _ in range(9):
        waiting.add("b")
    assert waiting.callers(10).count("b") in (5, 6)


def test_a_newcomer_to_an_empty_queue_stands_where_the_last_one_stood() -> None:
    waiting = Waiting()
    for _ in range(50):
        waiting.add("a")
    waiting.callers(50)
    for _ in range(10):
        waiting.add("b")
        waiting.add("a")
    assert waiting.callers(10).count("b") in (5, 6)


def test_a_higher_priority_goes_before_every_share() -> None:
    waiting = Waiting()
    for _ in range(3):
        waiting.add("a", priority=0)
        waiting.add("b", priority=1)
        waiting.add("c", priority=-1)
    assert waiting.callers(9) == "bbbaaaccc"


def test_who_is_next_stays_it_unless_somebody_more_urgent_comes() -> None:
    """Else a request that needs much room would be overtaken for ever by small ones."""
    waiting = Waiting()
    large = waiting.add("a", 90)
    waiting.add("b", 1)
    assert waiting.queue.head() is large
    waiting.running = {"a": 1000}
    waiting.add("c", 1)
    assert waiting.queue.head() is large
    urgent = waiting.add("c", 1, priority=1)
    assert waiting.queue.head() is urgent


def test_a_request_that_is_given_up_leaves_the_queue_as_if_it_had_not_come() -> None:
    waiting = Waiting()
    first, second = waiting.add("a"), waiting.add("a")
    assert waiting.queue.head() is first
    waiting.queue.remove(first)
    assert waiting.queue.head() is second
    waiting.queue.remove(second)
    assert list(waiting.queue) == []


def test_those_ahead_are_the_more_urgent_and_older_ones_of_the_same_caller() -> None:
    waiting = Waiting()
    urgent, older, _, mine = (
        waiting.add("b", priority=2),
        waiting.add("a", priority=1),
        waiting.add("b", priority=1),
        waiting.add("a", priority=1),
    )
    waiting.add("a", priority=1)
    waiting.add("b")
    assert list(waiting.queue.ahead_of(mine)) == [urgent, older]


# --- in the engine ----------------------------------------------------------------------------------------------------


def test_many_waiting_requests_delay_another_caller_by_a_few_steps_and_are_all_answered() -> None:
    delays = {}
    for caller in ("b", "a"):  # somebody else, and a late request of the same
        collector = make_collector(max_num_seqs=4)
        for key in range(200):
            collector.add(key, asking("a", number=key))
        for _ in range(10):
            collector.step()
        collector.add(200, asking(caller, number=7))
        delays[caller] = steps_to_first_token(collector, 200)
    assert delays["a"] > 200
    assert delays["b"] <= 6, "it got no place when the next one ended"
    collector.run()
    assert len(collector.outputs) == 201


def test_callers_who_keep_asking_get_the_same_whatever_they_send() -> None:
    """One sends many short prompts, the other few long ones: what is computed for each stays alike."""
    collector = make_collector(max_num_seqs=2, max_batch_tokens=16)
    for key in range(300):
        collector.add(key, asking("short", 2, 4, number=key))
    for key in range(300, 340):
        collector.add(key, asking("long", 60, 4, number=key))
    while len(collector.outputs) < 150:
        collector.step()
    done = dict.fromkeys(("short", "long"), 0)
    for key in collector.outputs:
        num_prompt, caller = (2, "short") if key < 300 else (60, "long")
        done[caller] += PROMPT_WEIGHT * num_prompt + COMPLETION_WEIGHT * len(collector.sequence(key).token_ids)
    assert abs(done["short"] - done["long"]) <= 2 * (60 + 2 * COMPLETION_WEIGHT * 4)


def test_what_is_computed_again_after_a_preemption_is_not_charged_twice() -> None:
    bench = Bench(RollingConfig(prefix_cache="off"))
    group = _added(bench, "a", 9, 5)
    bench.step()
    bench.scheduler.preempt(group.sequences[0])
    while bench.scheduler.has_work:
        bench.step()
    assert bench.scheduler.queue.shares.counters() == {"a": 9 * PROMPT_WEIGHT + 5 * COMPLETION_WEIGHT}


def test_cached_tokens_are_not_charged() -> None:
    bench = Bench(RollingConfig(), block_size=4)
    for _ in range(2):
        _added(bench, "a", 10, 1)
        bench.step()
    assert bench.scheduler.queue.shares.counters() == {"a": 10 + 2 + 2 * COMPLETION_WEIGHT}


@st.composite
def backlogs(draw: st.DrawFn) -> dict[str, list[tuple[int, int]]]:
    """For each caller the prompt and completion tokens of its requests."""
    sizes = st.tuples(st.integers(1, 40), st.integers(1, 8))
    return {caller: draw(st.lists(sizes, min_size=6, max_size=14)) for caller in "abc"[: draw(st.integers(2, 3))]}


@settings(max_examples=examples(12))
@given(backlogs(), st.integers(1, 4), st.sampled_from([8, 32]))
def test_while_callers_wait_none_was_given_more_than_a_batch_more(
    backlog: dict[str, list[tuple[int, int]]], max_num_seqs: int, max_batch_tokens: int
) -> None:
    bench = Bench(
        RollingConfig(max_num_seqs=max_num_seqs, max_batch_tokens=max_batch_tokens, prefix_cache="off"), num_blocks=128
    )
    begun: dict[str, list[int]] = {caller: [] for caller in backlog}
    groups = [_added(bench, caller, *size) for caller, sizes in backlog.items() for size in sizes]
    longest = max(size for sizes in backlog.values() for size, _ in sizes)
    most_running = max_num_seqs * max(size for sizes in backlog.values() for _, size in sizes)
    queue = bench.scheduler.queue
    while bench.scheduler.has_work:
        bench.step()
        for group in groups:
            if group.has_begun and group.key not in begun[group.request.caller]:
                begun[group.request.caller].append(group.key)
        if {group.request.caller for group in queue} == set(backlog):
            counters = queue.shares.counters().values()
            assert max(counters) - min(counters) <= PROMPT_WEIGHT * longest + COMPLETION_WEIGHT * most_running
    assert all(keys == sorted(keys) for keys in begun.values()), "a caller's requests did not begin in order"


def _added(bench: Bench, caller: str, num_prompt: int, max_tokens: int) -> SequenceGroup:
    request = asking(caller, num_prompt, max_tokens)
    group = SequenceGroup(AddRequest(bench.num_added, request), bench.num_added, bench.sampler)
    bench.scheduler.add(group)
    bench.num_added += 1
    return group


def test_sharing_holds_nobody_back() -> None:
    """The same requests take as many steps, whoever asks."""
    num_steps = set()
    for callers in ("a", "ab", "aaab"):
        bench = Bench(RollingConfig(max_num_seqs=3, prefix_cache="off"), num_blocks=64)
        for number in range(30):
            _added(bench, callers[number % len(callers)], 4, 3)
        count = 0
        while bench.scheduler.has_work:
            bench.step()
            count += 1
        num_steps.add(count)
    assert num_steps == {30}
