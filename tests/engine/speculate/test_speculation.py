"""Who speculates, how far, and what becomes of it: counts, limits, failures."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from dragoman.engine.rolling.config import RollingConfig, SpeculationConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.speculate.copied_text import OwnTextProposer
from dragoman.engine.rolling.speculate.proposer import Proposer, Wish
from dragoman.engine.rolling.speculate.speculation import MAX_DRAFT_TOKENS
from dragoman.errors import EngineFailed
from dragoman.types import EngineRequest, FinishReason
from tests.engine.fake_runner import FakeModel, FakeRunner
from tests.engine.naive import Collector, Generated, make_request, naive_sequence
from tests.engine.proposers import FunctionProposer, NoSumOfThree, Oracle
from tests.support.live_parts import with_criterion, with_masker

VOCAB_SIZE = 24


def unending(prompt_ids: Sequence[int] = (1, 2, 3), max_tokens: int = 13, **kwargs: Any) -> EngineRequest:
    return make_request(prompt_ids, max_tokens, ignore_eos=True, **kwargs)


FIVE = SpeculationConfig(num_assistant_tokens=5)


def make_collector(
    proposer: Proposer | None,
    runner: FakeRunner | None = None,
    speculation: SpeculationConfig = FIVE,
    **config: Any,
) -> Collector:
    runner = runner or FakeRunner(vocab_size=VOCAB_SIZE)
    proposers = [] if proposer is None else [proposer]
    limits = RollingConfig(**config)
    return Collector(EngineCore(runner, Sampler(VOCAB_SIZE), replace(limits, speculation=speculation), proposers))


def right() -> FunctionProposer:
    """Every draft is what the model will say."""
    return FunctionProposer(Oracle(VOCAB_SIZE, 0))


def run(
    proposer: Proposer | None, *requests: EngineRequest, speculation: SpeculationConfig = FIVE, **config: Any
) -> Collector:
    collector = make_collector(proposer, speculation=speculation, **config)
    for key, request in enumerate(requests):
        collector.add(key, request)
    collector.run()
    assert not collector.errors
    assert collector.core.stats.num_used_blocks == 0
    return collector


def answer_of(request: EngineRequest, index: int = 0) -> Generated:
    return naive_sequence(request, index, VOCAB_SIZE)


# --- what it brings ---------------------------------------------------------------------------------------------------


def test_right_drafts_give_several_tokens_per_step() -> None:
    plain, quick = run(None, unending()), run(right(), unending())
    assert quick.sequence(0) == plain.sequence(0)
    assert [len(output.token_ids) for output in quick.outputs[0]] == [1, 6, 6]
    assert (plain.core.stats.num_steps, quick.core.stats.num_steps) == (13, 3)


def test_wrong_drafts_still_give_one_token_per_step() -> None:
    collector = run(FunctionProposer(Oracle(VOCAB_SIZE, 8)), unending())
    assert [len(output.token_ids) for output in collector.outputs[0]] == [1] * 13
    assert collector.core.stats.num_accepted_tokens == 0


def test_outputs_and_totals_count_what_was_proposed_and_accepted() -> None:
    request = unending(max_tokens=12, logprobs=1)
    collector = run(FunctionProposer(Oracle(VOCAB_SIZE, 2)), request)
    outputs, stats = collector.outputs[0], collector.core.stats
    assert (outputs[0].num_draft_tokens, outputs[0].num_accepted_tokens) == (0, 0)
    assert all(len(output.token_ids) == output.num_accepted_tokens + 1 for output in outputs)
    assert all(len(output.logprobs or []) == len(output.token_ids) for output in outputs)
    assert sum(output.num_draft_tokens for output in outputs) == stats.num_draft_tokens
    assert 0 < sum(output.num_accepted_tokens for output in outputs) == stats.num_accepted_tokens
    assert stats.num_accepted_tokens < stats.num_draft_tokens
    assert stats.num_generated_tokens == 12


def test_ranked_sequences_report_their_counts_at_the_end() -> None:
    collector = run(right(), unending(temperature=1.0, n=2, best_of=3))
    counts = [(output.num_draft_tokens, output.num_accepted_tokens) for output in collector.outputs[0]]
    assert counts == [(10, 10), (10, 10)]  # two steps of five drafts each
    assert collector.core.stats.num_draft_tokens == 30


@pytest.mark.parametrize("end", ["eos", "stop token", "criterion"])
def test_an_end_among_the_drafts_ends_the_sequence_there(end: str) -> None:
    request = unending()
    tokens = answer_of(request).token_ids
    last = tokens[4]
    num_left = tokens.index(last) + 1
    sampling = msgspec.structs.replace(
        request.sampling, ignore_eos=end != "eos", stop_token_ids=(last,) if end == "stop token" else ()
    )
    request = msgspec.structs.replace(request, sampling=sampling, eos_token_ids=frozenset({last}))
    if end == "criterion":
        request = with_criterion(request, lambda token_ids: token_ids[-1] == last)
    full = Oracle(VOCAB_SIZE, 0)
    everything = unending()
    proposer = FunctionProposer(lambda wish: full(replace(wish, sequence=_Twin(wish, everything))))  # type: ignore[arg-type]
    collector = run(proposer, request)
    reason = {"eos": FinishReason.EOS, "stop token": FinishReason.STOP_TOKEN}.get(end, FinishReason.STOP_STRING)
    assert collector.sequence(0) == Generated(tokens[:num_left], reason)
    assert len(collector.outputs[0]) == 2, "the end was not among the drafts"
    assert collector.outputs[0][-1].num_accepted_tokens == len(collector.outputs[0][-1].token_ids)


class _Twin:
    """A wish's sequence as if it belonged to a request that does not end."""

    def __init__(self, wish: Wish, request: EngineRequest) -> None:
        self.index = wish.sequence.index
        self.num_generated_tokens = wish.sequence.num_generated_tokens
        self.group = self
        self.request = request


# --- who speculates ---------------------------------------------------------------------------------------------------


def drafted(collector: Collector, key: int) -> bool:
    return any(output.num_draft_tokens for output in collector.outputs[key])


def test_some_requests_of_a_batch_speculate_while_others_do_not() -> None:
    requests = [
        unending(),
        unending(num_assistant_tokens=0),
        unending(num_assistant_tokens=2, temperature=1.0),
        unending(prompt_logprobs=1),
        unending(num_beams=2),
    ]
    collector = run(right(), *requests)
    assert [drafted(collector, key) for key in range(5)] == [True, False, True, False, False]
    for key in range(4):
        assert collector.sequence(key).token_ids == answer_of(requests[key]).token_ids
    assert len(collector.sequence(4).token_ids) == 13


@pytest.mark.parametrize(
    ("knobs", "limit"),
    [({}, 5), ({"num_assistant_tokens": 2}, 2), ({"num_assistant_tokens": 10**9}, MAX_DRAFT_TOKENS)],
)
def test_a_request_says_how_many_tokens_are_drafted(knobs: dict[str, Any], limit: int) -> None:
    proposer = right()
    run(proposer, unending(max_tokens=60, **knobs))
    assert max(proposer.limits) == limit


def test_drafts_never_exceed_what_a_request_may_still_generate() -> None:
    proposer = FunctionProposer(lambda wish: [1] * 100)
    run(proposer, unending(max_tokens=6), speculation=SpeculationConfig(num_assistant_tokens=9))
    assert proposer.limits == sorted(proposer.limits, reverse=True)
    assert (proposer.limits[0], proposer.limits[-1]) == (4, 1)


def test_in_a_large_batch_no_number_of_guesses_is_kept_to() -> None:
    proposer = right()
    run(proposer, *(unending(seed=seed) for seed in range(4)), speculation=replace(FIVE, max_batch=3))
    assert not any(wish.is_fixed for wish in proposer.wishes)


def test_drafts_that_would_cost_blocks_or_budget_are_dropped_before_anybody_is_preempted() -> None:
    runner = FakeRunner(num_blocks=10, block_size=4, vocab_size=VOCAB_SIZE)  # two sequences of 5 blocks: exactly enough
    collector = make_collector(right(), runner, SpeculationConfig(num_assistant_tokens=9))
    for key in range(2):
        collector.add(key, unending([1, 2, 3, key], max_tokens=16))
    collector.run()
    assert collector.core.stats.num_preemptions == 0
    assert collector.core.stats.num_draft_tokens > 0


def test_a_budget_for_fewer_tokens_than_the_drafts_serves_everybody() -> None:
    requests = [unending([1, 2, 3, key]) for key in range(3)]
    collector = run(right(), *requests, max_batch_tokens=4)
    assert [collector.sequence(key) for key in range(3)] == [answer_of(request) for request in requests]


def test_refused_drafts_never_reach_the_prefix_cache() -> None:
    """They fill a block and are overwritten; a prompt that consists of them must not be given that block."""
    first = unending([1, 2, 3], max_tokens=8)
    answer = answer_of(first).token_ids
    wrong = next(token_id for token_id in range(1, VOCAB_SIZE) if token_id not in answer)
    collector = make_collector(FunctionProposer(lambda wish: [wrong] * 5), prefix_cache="all")
    collector.add(0, first)
    collector.run()
    second = unending([1, 2, 3, answer[0], wrong, wrong, wrong, wrong, 5, 6], max_tokens=8, num_assistant_tokens=0)
    collector.add(1, second)
    collector.run()
    assert collector.sequence(0) == answer_of(first)
    assert collector.sequence(1) == answer_of(second)


def test_accepted_drafts_reach_the_prefix_cache() -> None:
    first = unending([1, 2, 3], max_tokens=15)
    collector = make_collector(right(), prefix_cache="all")
    collector.add(0, first)
    collector.run()
    second = unending([1, 2, 3, *answer_of(first).token_ids], max_tokens=4)
    collector.add(1, second)
    collector.run()
    assert collector.outputs[1][0].num_cached_tokens == 16
    assert collector.sequence(1) == answer_of(second)


# --- what cannot be accepted is not proposed --------------------------------------------------------------------------


def test_drafts_that_the_grammar_forbids_are_cut_before_the_forward() -> None:
    collector = run(FunctionProposer(lambda wish: [3, 3, 3]), with_masker(unending(), NoSumOfThree()))
    # after an allowed 3 another 3 is not allowed
    assert {output.num_draft_tokens for output in collector.outputs[0]} <= {0, 1}
    assert collector.core.stats.num_draft_tokens > 0


def test_drafts_outside_the_vocabulary_are_cut() -> None:
    collector = run(FunctionProposer(lambda wish: [5, VOCAB_SIZE, 5]), unending())
    assert {output.num_draft_tokens for output in collector.outputs[0]} == {0, 1}


def test_drafts_that_complete_a_forbidden_word_are_refused() -> None:
    plain = unending()
    tokens = answer_of(plain).token_ids
    banned = msgspec.structs.replace(plain, bad_word_ids=((tokens[3], tokens[4]), (tokens[6], tokens[7], tokens[8])))
    oracle = Oracle(VOCAB_SIZE, 0)
    collector = run(FunctionProposer(lambda wish: oracle(replace(wish, sequence=_Twin(wish, plain)))), banned)  # type: ignore[arg-type]
    assert collector.sequence(0) == answer_of(banned) != answer_of(plain)
    assert collector.core.stats.num_accepted_tokens > 0


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_failing_proposer_is_switched_off_and_nobody_notices() -> None:
    calls: list[Wish] = []

    def fail_once(wish: Wish) -> list[int]:
        calls.append(wish)
        raise RuntimeError("no idea")

    requests = [unending(), unending(temperature=1.0)]
    collector = run(FunctionProposer(fail_once), *requests)
    assert len(calls) == 1
    assert [collector.sequence(key) for key in range(2)] == [answer_of(request) for request in requests]


class BrokenMasker(NoSumOfThree):
    """Fails when it is asked about drafts, and when it is asked for its mask after that."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = False

    def fork(self) -> BrokenMasker:
        return self

    def fill_mask(self, bitmask_row: Any) -> None:
        if self.is_broken:
            raise RuntimeError("grammar state lost")
        super().fill_mask(bitmask_row)

    def validate(self, token_ids: Sequence[int]) -> int:
        self.is_broken = True
        raise RuntimeError("grammar state lost")


def test_a_grammar_that_breaks_while_drafts_are_checked_fails_only_its_own_request() -> None:
    collector = make_collector(right())
    collector.add(0, unending())
    collector.add(1, with_masker(unending(), BrokenMasker()))
    collector.run()
    assert collector.sequence(0) == answer_of(unending())
    assert set(collector.errors) == {1}
    assert isinstance(collector.errors[1], EngineFailed)


def test_a_failed_step_keeps_the_drafts_of_those_it_did_not_touch() -> None:
    class BreaksLater(NoSumOfThree):
        def __init__(self, num_tokens: int = 0) -> None:
            super().__init__()
            self.num_tokens = num_tokens

        def fork(self) -> BreaksLater:
            return BreaksLater(self.num_tokens)

        def advance(self, token_id: int) -> bool:
            self.num_tokens += 1
            return True

        def fill_mask(self, bitmask_row: Any) -> None:
            if self.num_tokens == 3:
                raise RuntimeError("grammar state lost")
            bitmask_row[:] = 0xFFFFFFFF

        def validate(self, token_ids: Sequence[int]) -> int:
            return 0

    collector = make_collector(right(), speculation=SpeculationConfig(num_assistant_tokens=2))
    collector.add(0, unending())
    collector.add(1, with_masker(unending(), BreaksLater()))
    collector.run()
    assert set(collector.errors) == {1}
    assert collector.sequence(0) == answer_of(unending())


# --- the engine around it ---------------------------------------------------------------------------------------------


def test_the_engine_says_whether_it_speculates() -> None:
    runner = FakeRunner(vocab_size=VOCAB_SIZE)
    assert not RollingEngine(runner, Sampler(VOCAB_SIZE)).capabilities.speculative
    assert RollingEngine(runner, Sampler(VOCAB_SIZE), proposers=[OwnTextProposer()]).capabilities.speculative


async def _run_and_stop(engine: RollingEngine, request: EngineRequest) -> list[int]:
    await engine.start()
    token_ids = [token_id async for output in engine.generate(request) for token_id in output.token_ids]
    await engine.shutdown(1.0)
    return token_ids


def test_the_engine_closes_its_proposer() -> None:
    proposer = right()
    engine = RollingEngine(
        FakeRunner(vocab_size=VOCAB_SIZE), Sampler(VOCAB_SIZE), RollingConfig(speculation=FIVE), [proposer]
    )
    assert asyncio.run(_run_and_stop(engine, unending())) == answer_of(unending()).token_ids
    assert (engine.stats().num_accepted_tokens or 0) > 0
    assert proposer.is_closed


@pytest.mark.parametrize("name", ["num_assistant_tokens", "max_ngram_size", "max_batch"])
def test_a_limit_below_one_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0, must be at least 1"):
        SpeculationConfig(**{name: 0})  # type: ignore[arg-type]


def test_a_proposal_longer_than_wished_is_cut() -> None:
    collector = run(FunctionProposer(lambda wish: array("q", [1] * 50)), unending(num_assistant_tokens=2))
    assert max(output.num_draft_tokens for output in collector.outputs[0]) == 2


def test_no_draft_reaches_into_the_long_regime_before_its_sequence_does() -> None:
    model = FakeModel(long_context_from=7)
    runner = FakeRunner(vocab_size=VOCAB_SIZE, long_context_from=7)
    proposer = FunctionProposer(Oracle(VOCAB_SIZE, 0, model))
    collector = make_collector(proposer, runner, SpeculationConfig(num_assistant_tokens=4))
    request = unending([1, 2, 3], max_tokens=14)
    collector.add(0, request)
    collector.run()
    assert collector.sequence(0) == naive_sequence(request, 0, VOCAB_SIZE, model)
    assert proposer.limits == [3, 4, 2], (
        "4 tokens become 8, which are computed anew; 9 become 14, 14 the 17 that are wanted"
    )
