"""One engine step after another, without a thread: what requests get, and what happens when something goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import AbortRequest, EngineCore
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.errors import CapacityError, EngineFailed, InvalidParameter, InvalidRequest
from dragoman.types import EngineRequest, FinishReason, TokenMasker
from tests.engine.fake_runner import FakeRunner
from tests.engine.naive import Collector, Generated, make_request, naive_prompt_logprobs, naive_sequence
from tests.support.live_parts import with_criterion, with_masker
from tests.support.maskers import ByForks

VOCAB_SIZE = 24


def make_collector(runner: FakeRunner | None = None, **config: Any) -> Collector:
    runner = runner or FakeRunner(vocab_size=VOCAB_SIZE)
    return Collector(EngineCore(runner, Sampler(VOCAB_SIZE), RollingConfig(**config)))


def run_one(request: EngineRequest, **config: Any) -> Collector:
    collector = make_collector(**config)
    collector.add(0, request)
    collector.run()
    assert collector.core.stats.num_used_blocks == 0
    return collector


def unending(prompt_ids: Sequence[int], **kwargs: Any) -> EngineRequest:
    """A request that generates all its `max_tokens`."""
    return make_request(prompt_ids, ignore_eos=True, **kwargs)


def first_tokens(request: EngineRequest, index: int = 0) -> list[int]:
    return naive_sequence(request, index, VOCAB_SIZE).token_ids


# --- endings ----------------------------------------------------------------------------------------------------------


def test_a_sequence_ends_with_length_at_max_tokens() -> None:
    got = run_one(unending([1, 2, 3], max_tokens=5)).sequence(0)
    assert len(got.token_ids) == 5
    assert got.finish_reason is FinishReason.LENGTH


def test_a_sequence_ends_with_the_end_of_sequence_token_and_contains_it() -> None:
    request = unending([1, 2, 3], max_tokens=20)
    tokens = first_tokens(request)
    eos = tokens[6]
    request = msgspec.structs.replace(
        request, eos_token_ids=frozenset({eos}), sampling=msgspec.structs.replace(request.sampling, ignore_eos=False)
    )
    got = run_one(request).sequence(0)
    assert got == Generated(tokens[: tokens.index(eos) + 1], FinishReason.EOS)


def test_a_stop_token_ends_a_sequence_even_if_end_of_sequence_is_ignored() -> None:
    request = unending([1, 2, 3], max_tokens=20)
    tokens = first_tokens(request)
    request = msgspec.structs.replace(
        request, sampling=msgspec.structs.replace(request.sampling, stop_token_ids=(tokens[4],))
    )
    got = run_one(msgspec.structs.replace(request, eos_token_ids=frozenset({tokens[4]}))).sequence(0)
    assert got == Generated(tokens[: tokens.index(tokens[4]) + 1], FinishReason.STOP_TOKEN)


def test_end_tokens_before_min_tokens_are_not_generated() -> None:
    request = make_request([1, 2, 3], max_tokens=20)
    banned = msgspec.structs.replace(request, eos_token_ids=frozenset(range(0, VOCAB_SIZE, 2)))
    banned = msgspec.structs.replace(banned, sampling=msgspec.structs.replace(request.sampling, min_tokens=6))
    got = run_one(banned).sequence(0)
    assert all(token_id % 2 for token_id in got.token_ids[:6])
    assert len(got.token_ids) > 6
    assert got.finish_reason is FinishReason.EOS


def test_the_stop_criterion_ends_a_sequence() -> None:
    request = unending([1, 2, 3], max_tokens=20)
    tokens = first_tokens(request)
    request = with_criterion(request, lambda token_ids: list(token_ids[-2:]) == tokens[3:5])
    assert run_one(request).sequence(0) == Generated(tokens[:5], FinishReason.STOP_STRING)


def test_a_sequence_that_fills_the_context_ends_with_length() -> None:
    collector = make_collector(FakeRunner(vocab_size=VOCAB_SIZE, max_model_len=12))
    collector.add(0, unending([1, 2, 3], max_tokens=9))
    collector.run()
    assert len(collector.sequence(0).token_ids) == 9


# --- log-probabilities ------------------------------------------------------------------------------------------------


def test_log_probabilities_are_delivered_only_if_asked_for() -> None:
    (plain,) = run_one(unending([1, 2], max_tokens=1)).outputs[0]
    assert (plain.logprobs, plain.top_logprobs, plain.cumulative_logprob) == (None, None, None)
    (asked,) = run_one(unending([1, 2], max_tokens=1, logprobs=2)).outputs[0]
    assert asked.logprobs is not None
    assert asked.top_logprobs is not None
    assert [len(top) for top in asked.top_logprobs] == [2]
    assert asked.cumulative_logprob == asked.logprobs[0]


@pytest.mark.parametrize("max_batch_tokens", [4, 7, 512])
@pytest.mark.parametrize("num_prompt_tokens", [1, 2, 21])
def test_prompt_log_probabilities_alone_cost_no_token(num_prompt_tokens: int, max_batch_tokens: int) -> None:
    request = make_request(range(1, num_prompt_tokens + 1), max_tokens=0, prompt_logprobs=3)
    collector = run_one(request, max_batch_tokens=max_batch_tokens)
    (output,) = collector.outputs[0]
    assert (output.token_ids, output.finish_reason) == ([], FinishReason.LENGTH)
    assert output.prompt_logprobs == naive_prompt_logprobs(request, VOCAB_SIZE)
    assert collector.core.stats.num_generated_tokens == 0


def test_prompt_log_probabilities_are_complete_although_the_prompt_is_cached() -> None:
    collector = make_collector()
    prompt = list(range(1, 20))
    request = make_request(prompt, max_tokens=2, prompt_logprobs=1)
    for key, one in enumerate([make_request(prompt), request, make_request(prompt)]):
        collector.add(key, one)
        collector.run()
    assert collector.outputs[1][0].prompt_logprobs == naive_prompt_logprobs(request, VOCAB_SIZE)
    assert [collector.outputs[key][0].num_cached_tokens for key in range(3)] == [0, 0, 16]


def test_prompt_log_probabilities_collected_before_a_preemption_are_kept() -> None:
    # 19 blocks of 2: the first request outgrows its share while the second one's prompt is still being computed
    collector = make_collector(
        FakeRunner(num_blocks=19, block_size=2, vocab_size=VOCAB_SIZE), max_batch_tokens=5, assumed_output_tokens=1
    )
    old = unending(range(1, 17), max_tokens=20)
    scored = make_request(range(1, 19), max_tokens=3, prompt_logprobs=0)
    collector.add(0, old)
    while not collector.outputs[0]:
        collector.step()
    collector.add(1, scored)
    collector.run()
    assert collector.core.stats.num_preemptions > 0
    assert collector.outputs[1][0].prompt_logprobs == naive_prompt_logprobs(scored, VOCAB_SIZE)
    assert collector.sequence(1) == naive_sequence(scored, 0, VOCAB_SIZE)


# --- several sequences ------------------------------------------------------------------------------------------------


def test_n_sequences_compute_their_prompt_once_and_copy_only_what_they_write() -> None:
    runner = FakeRunner(vocab_size=VOCAB_SIZE)
    collector = make_collector(runner)
    request = unending(range(1, 11), max_tokens=6, n=3, temperature=1.0)
    collector.add(0, request)
    collector.run()
    assert collector.core.stats.num_prompt_tokens == 10
    assert runner.num_copies == 2
    assert [collector.sequence(0, index).token_ids for index in range(3)] == [
        first_tokens(request, i) for i in range(3)
    ]
    assert len({tuple(collector.sequence(0, index).token_ids) for index in range(3)}) == 3


def test_greedy_sequences_are_copies() -> None:
    collector = run_one(unending([1, 2, 3], max_tokens=6, n=3))
    assert collector.sequence(0, 0) == collector.sequence(0, 1) == collector.sequence(0, 2)


def test_best_of_delivers_the_best_sequences_whole_and_ranked() -> None:
    request = unending([1, 2, 3], max_tokens=6, n=2, best_of=5, temperature=1.0)
    outputs = run_one(request).outputs[0]
    scored = msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, logprobs=0))
    drawn = [naive_sequence(scored, index, VOCAB_SIZE) for index in range(5)]
    drawn.sort(key=lambda sequence: -sum(sequence.logprobs))
    assert [(output.index, output.token_ids) for output in outputs] == [
        (0, drawn[0].token_ids),
        (1, drawn[1].token_ids),
    ]
    scores = [sum(one.logprobs) for one in drawn[:2]]
    assert [output.cumulative_logprob for output in outputs] == pytest.approx(scores)  # Python 3.12 sums more exactly
    assert all(output.logprobs is None for output in outputs)


def test_one_output_per_sequence_closes_a_request_without_tokens() -> None:
    outputs = run_one(make_request([1, 2, 3], max_tokens=0, n=2, best_of=3)).outputs[0]
    assert [(output.index, output.finish_reason) for output in outputs] == [
        (0, FinishReason.LENGTH),
        (1, FinishReason.LENGTH),
    ]


# --- refusals and failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "numbers"),
    [
        (33, 1, ["33", "holds 32"]),
        (20, 13, ["20 prompt tokens", "max_tokens 13", "33 tokens", "holds 32"]),
        (32, 0, []),
    ],
)
def test_a_request_that_can_never_fit_is_refused_with_both_numbers(
    num_prompt_tokens: int, max_tokens: int, numbers: list[str]
) -> None:
    collector = make_collector(FakeRunner(num_blocks=8, block_size=4, vocab_size=VOCAB_SIZE))
    collector.add(0, make_request([1] * num_prompt_tokens, max_tokens=max_tokens))
    collector.run()
    if not numbers:
        assert not collector.errors
        return
    error = collector.errors[0]
    assert isinstance(error, CapacityError)
    assert all(number in error.message for number in numbers)
    assert not collector.outputs


def test_a_request_beyond_the_context_is_refused_with_both_numbers() -> None:
    collector = make_collector(FakeRunner(vocab_size=VOCAB_SIZE, max_model_len=16))
    collector.add(0, make_request([1] * 10, max_tokens=7))
    collector.run()
    assert collector.errors[0].message == "10 prompt tokens + max_tokens 7 = 17 tokens, the model's context is 16"


def test_requests_that_the_engine_cannot_run_are_refused_alone() -> None:
    collector = make_collector()
    collector.add(0, make_request([]))
    collector.add(1, make_request([1], num_beams=2000))
    collector.add(2, make_request([1, 2]))
    collector.run()
    assert [type(collector.errors[key]) for key in (0, 1)] == [InvalidRequest, InvalidParameter]
    assert collector.sequence(2) == naive_sequence(make_request([1, 2]), 0, VOCAB_SIZE)


def failing_runner(fails: Callable[[FakeRunner, ForwardBatch], bool], **options: Any) -> FakeRunner:
    """A runner whose forwards fail when the function says so."""

    def before_forward(batch: ForwardBatch) -> None:
        if fails(runner, batch):
            raise RuntimeError("the kernel\ngave up")

    runner = FakeRunner(vocab_size=VOCAB_SIZE, before_forward=before_forward, **options)
    return runner


MIXED: list[dict[str, Any]] = [
    {},
    {"n": 3, "temperature": 1.0},
    {"num_beams": 3, "n": 2, "best_of": 3},
    {"best_of": 3, "temperature": 0.8},
    {"prompt_logprobs": 1},
    {"max_tokens": 0, "prompt_logprobs": 0},
]
BAD = 23  # a token that no kernel survives


def mixed_requests() -> list[EngineRequest]:
    """Requests of all kinds, with prompts that begin alike."""
    found = []
    for number, kind in enumerate(MIXED):
        options = {"max_tokens": 6, **kind}
        found.append(make_request([1, 2, 3, 4, 5, 6, 7, number + 1], name=str(number), ignore_eos=True, **options))
    return found


def answers_of(runner: FakeRunner, requests: Sequence[EngineRequest], **config: Any) -> Collector:
    collector = make_collector(runner, **config)
    for key, request in enumerate(requests):
        collector.add(key, request)
    collector.run()
    assert collector.core.stats.num_used_blocks == 0
    return collector


def told(collector: Collector, key: int) -> list[Any]:
    """What a request got; how many of its tokens were cached is nobody's answer."""
    return [
        [collector.sequence(key, output.index), output.prompt_logprobs]
        for output in collector.outputs[key]
        if output.finish_reason is not None
    ]


@pytest.mark.parametrize("config", [{}, {"max_num_seqs": 3}, {"max_batch_tokens": 8}, {"repeats_steps": False}])
@pytest.mark.parametrize("failing", [1, 2, 3, 5, 8])
def test_a_forward_that_fails_once_changes_nobodys_tokens(failing: int, config: dict[str, Any]) -> None:
    requests = mixed_requests()
    expected = answers_of(FakeRunner(vocab_size=VOCAB_SIZE), requests, **config)
    runner = failing_runner(lambda runner, batch: runner.num_forwards == failing and len(batch.past_lens) > 1)
    collector = answers_of(runner, requests, **config)
    num_lost = len(collector.errors)
    assert num_lost <= 1, "a batch of several sequences of one request"
    for key in range(len(requests)):
        assert key in collector.errors or told(collector, key) == told(expected, key)


@pytest.mark.parametrize("config", [{}, {"max_num_seqs": 3}, {"max_batch_tokens": 8}])
@pytest.mark.parametrize("position", [0, 5, 11])
def test_a_request_that_no_forward_survives_fails_alone(position: int, config: dict[str, Any]) -> None:
    prompt = [9] * 12
    prompt[position] = BAD
    runner = failing_runner(lambda runner, batch: BAD in batch.input_ids.tolist())
    mixed = mixed_requests()
    safe = [
        msgspec.structs.replace(
            one, sampling=msgspec.structs.replace(one.sampling, allowed_token_ids=tuple(range(BAD)))
        )
        for one in mixed
    ]
    expected = answers_of(FakeRunner(vocab_size=VOCAB_SIZE), safe, **config)
    collector = answers_of(runner, [*safe, make_request(prompt), make_request(prompt, name="again")], **config)
    assert set(collector.errors) == {len(safe), len(safe) + 1}
    assert all(isinstance(error, EngineFailed) for error in collector.errors.values())
    assert collector.errors[len(safe)].message == "generation failed: RuntimeError: the kernel gave up"
    assert collector.errors[len(safe)] is not collector.errors[len(safe) + 1]
    for key in range(len(safe)):
        assert told(collector, key) == told(expected, key)


def test_a_forward_that_always_fails_fails_everybody_once() -> None:
    collector = answers_of(failing_runner(lambda runner, batch: True), mixed_requests())
    assert set(collector.errors) == set(range(len(MIXED)))
    assert not collector.outputs


def test_a_forward_that_fails_in_company_only_is_not_tried_for_ever() -> None:
    collector = answers_of(failing_runner(lambda runner, batch: len(batch.past_lens) > 1), mixed_requests()[:1] * 4)
    assert len(collector.errors) == 4
    assert collector.core.stats.num_steps < 20


def test_a_copy_of_blocks_that_fails_changes_nobodys_tokens() -> None:
    class FailingCopies(FakeRunner):
        num_failures = 0

        def copy_blocks(self, pairs: Sequence[tuple[int, int]], kind: int = 0) -> None:
            if self.num_failures < 1:
                self.num_failures += 1
                raise MemoryError("no room to copy")
            super().copy_blocks(pairs, kind)

    requests = mixed_requests()
    expected = answers_of(FakeRunner(vocab_size=VOCAB_SIZE), requests)
    runner = FailingCopies(vocab_size=VOCAB_SIZE)
    collector = answers_of(runner, requests)
    assert runner.num_failures == 1
    assert not collector.errors
    assert [told(collector, key) for key in range(len(requests))] == [
        told(expected, key) for key in range(len(requests))
    ]


def test_requests_come_and_go_while_others_are_computed_alone() -> None:
    requests = [unending([key + 1, 2, 3], max_tokens=5, name=str(key)) for key in range(5)]
    collector = make_collector(failing_runner(lambda runner, batch: runner.num_forwards == 2))
    for key in range(3):
        collector.add(key, requests[key])
    for _ in range(2):
        collector.step()
    collector.add(3, requests[3])
    collector.core.inbox.put(AbortRequest(0))
    collector.step()
    collector.core.inbox.put(AbortRequest(2))
    collector.add(4, requests[4])
    collector.run()
    assert not collector.errors
    for key in (1, 3, 4):
        assert collector.sequence(key) == naive_sequence(requests[key], 0, VOCAB_SIZE)
    assert collector.core.stats.num_used_blocks == 0


class BrokenMasker(ByForks):
    """A grammar that allows everything, until it breaks at its second token: when it advances, or when it is asked."""

    def __init__(self, breaks_in: str) -> None:
        self.breaks_in = breaks_in
        self.num_tokens = 0

    def fork(self) -> TokenMasker:
        return BrokenMasker(self.breaks_in)

    def fill_mask(self, bitmask_row: Any) -> None:
        self.check("fill_mask")
        bitmask_row[:] = 0xFFFFFFFF

    def advance(self, token_id: int) -> bool:
        self.num_tokens += 1
        self.check("advance")
        return True

    def check(self, where: str) -> None:
        if where == self.breaks_in and self.num_tokens == 2:
            raise RuntimeError("grammar state lost")

    def validate(self, token_ids: Sequence[int]) -> int:
        return len(token_ids)

    @property
    def is_finished(self) -> bool:
        return False


@pytest.mark.parametrize("breaks_in", ["advance", "fill_mask"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_failing_grammar_fails_only_its_own_request(n: int, breaks_in: str) -> None:
    collector = make_collector(max_batch_tokens=16)
    healthy = unending([1, 2, 3], max_tokens=5)
    scored = make_request([*range(1, 20)] * 2, max_tokens=2, prompt_logprobs=1)
    broken = with_masker(unending([1, 2, 4], max_tokens=5, n=n, temperature=1.0), BrokenMasker(breaks_in))
    for key, request in enumerate([healthy, broken, healthy, scored]):
        collector.add(key, request)
    collector.run()
    assert set(collector.errors) == {1}
    assert isinstance(collector.errors[1], EngineFailed)
    assert "grammar state lost" in collector.errors[1].message
    assert collector.sequence(0) == collector.sequence(2) == naive_sequence(healthy, 0, VOCAB_SIZE)
    assert collector.sequence(3) == naive_sequence(scored, 0, VOCAB_SIZE)
    assert collector.outputs[3][0].prompt_logprobs == naive_prompt_logprobs(scored, VOCAB_SIZE)
    assert collector.core.stats.num_used_blocks == 0


def test_aborting_frees_the_blocks_in_the_next_step() -> None:
    collector = make_collector()
    collector.add(0, unending(range(1, 11), max_tokens=50, n=3, temperature=1.0))
    for _ in range(4):
        collector.step()
    assert collector.core.stats.num_used_blocks > 0
    collector.core.inbox.put(AbortRequest(0))
    collector.core.inbox.put(AbortRequest(17))  # an unknown key is nothing to abort
    collector.step()
    assert collector.core.stats.num_used_blocks == 0
    assert not collector.core.has_work()


def test_a_request_aborted_before_its_first_step_never_runs() -> None:
    runner = FakeRunner(vocab_size=VOCAB_SIZE)
    collector = make_collector(runner)
    collector.add(0, make_request([1, 2]))
    collector.core.inbox.put(AbortRequest(0))
    collector.run()
    assert runner.num_forwards == 0


def test_stats_count_steps_tokens_and_prefix_hits() -> None:
    collector = make_collector()
    for key in range(2):
        collector.add(key, unending(range(1, 11), max_tokens=3))
        collector.run()
    stats = collector.core.stats
    assert (stats.num_steps, stats.num_prompt_tokens, stats.num_generated_tokens) == (6, 12, 6)
    assert (stats.num_prefix_queries, stats.num_prefix_hits, stats.num_preemptions) == (20, 8, 0)
