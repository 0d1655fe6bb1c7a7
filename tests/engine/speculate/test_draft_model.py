"""A draft model follows the sequences through the same blocks, computes nothing twice and guesses greedily."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from dragoman.engine.rolling.config import RollingConfig, SpeculationConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.speculate.draft_model import DraftModelProposer
from dragoman.engine.rolling.speculate.proposer import Proposal, Wish
from dragoman.engine.rolling.speculate.speculation import MAX_CONFIDENT_TOKENS
from dragoman.types import EngineRequest
from tests.engine.fake_runner import PLAIN, FakeModel, FakeRunner, last_logits
from tests.engine.naive import Collector, make_request, naive_sequence
from tests.engine.proposers import CheckedDraft

VOCAB_SIZE = 24


class CountingRunner(FakeRunner):
    """Remembers how many tokens and sequences every forward computed."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(vocab_size=VOCAB_SIZE, before_forward=self._count, **sizes)
        self.num_tokens: list[int] = []
        self.num_sequences: list[int] = []

    def _count(self, batch: ForwardBatch) -> None:
        self.num_tokens.append(len(batch.input_ids))
        self.num_sequences.append(len(batch.past_lens))


FIVE = SpeculationConfig(num_assistant_tokens=5)


class Drafted:
    """An engine whose draft model is the model, in a cache of its own."""

    def __init__(
        self,
        config: SpeculationConfig = FIVE,
        num_blocks: int = 64,
        model: FakeModel = PLAIN,
        proposer: type[CheckedDraft] = CheckedDraft,
        **draft_sizes: Any,
    ) -> None:
        runner = FakeRunner(
            vocab_size=VOCAB_SIZE,
            num_blocks=num_blocks,
            max_model_len=2048,
            long_context_from=model.long_context_from,
            before_forward=self._count,
        )
        self.num_forwards = 0
        self.model = model
        self.draft = CountingRunner(**{"num_blocks": num_blocks, "max_model_len": 2048, **draft_sizes})
        self.proposer = proposer(self.draft, runner)
        limits = RollingConfig(max_num_seqs=16, assumed_output_tokens=1)
        core = EngineCore(
            runner, Sampler(VOCAB_SIZE), replace(limits, speculation=config), [self.proposer], clock=self._seconds
        )
        self.stats = core.stats
        self.collector = Collector(core)

    def _count(self, batch: ForwardBatch) -> None:
        self.num_forwards += 1

    def _seconds(self) -> float:
        """The engine's clock: the draft is as slow as the model, so that guesses pay only where they were asked for."""
        return self.num_forwards + len(self.draft.num_tokens)

    def run(self, *requests: EngineRequest) -> None:
        """Run the requests together, and check their tokens."""
        first = len(self.collector.outputs)
        for key, request in enumerate(requests, first):
            self.collector.add(key, request)
        self.collector.run()
        assert not self.proposer.mistakes
        for key, request in enumerate(requests, first):
            for index in range(request.sampling.n):
                expected = naive_sequence(request, index, VOCAB_SIZE, self.model)
                assert self.collector.sequence(key, index).token_ids == expected.token_ids


def unending(prompt_ids: Sequence[int] = (1, 2, 3), max_tokens: int = 20, **kwargs: Any) -> EngineRequest:
    return make_request(prompt_ids, max_tokens, ignore_eos=True, **kwargs)


@pytest.mark.parametrize("num_prompt_tokens", [1, 3, 4, 5, 41])
def test_a_draft_equal_to_the_model_is_always_right(num_prompt_tokens: int) -> None:
    drafted = Drafted()
    drafted.run(unending(range(num_prompt_tokens), max_tokens=60))
    assert drafted.stats.num_accepted_tokens == drafted.stats.num_draft_tokens == 49


def test_sequences_draft_together_and_catch_up_in_one_row() -> None:
    drafted = Drafted(SpeculationConfig(num_assistant_tokens=3))
    drafted.run(*(unending([1, 2, key]) for key in range(5)))
    assert drafted.draft.num_sequences[:5] == [1] * 5, "prompts are computed one by one, in case they share blocks"
    later = list(zip(drafted.draft.num_sequences, drafted.draft.num_tokens, strict=True))[5:]
    assert later[:6] == [(5, 5), (5, 5), (5, 5), (5, 10), (5, 5), (5, 5)]  # 10: the last draft and the token after it


def test_siblings_use_what_the_draft_computed_for_the_first_of_them() -> None:
    drafted = Drafted()
    drafted.run(unending(range(1, 22), max_tokens=7, n=3, temperature=1.0))
    # 21 prompt tokens in blocks of four: the siblings compute the rest of the sixth block, which is their own
    assert drafted.draft.num_tokens[:3] == [21, 1, 1]


def test_a_later_request_with_the_same_prompt_finds_the_drafts_blocks() -> None:
    drafted = Drafted()
    drafted.run(unending(range(1, 22)))
    num_before = len(drafted.draft.num_tokens)
    drafted.run(unending(range(1, 22), temperature=1.0))
    assert drafted.draft.num_tokens[num_before] == 5, (
        "four blocks of four are shared; the model computes the rest anew too"
    )


def test_blocks_that_were_given_to_another_prompt_are_not_taken_for_the_old_one() -> None:
    drafted = Drafted(num_blocks=12)  # of which a request takes 8
    for prompt in (range(1, 21), range(2, 22), range(1, 21)):
        drafted.run(unending(prompt, max_tokens=11))
    assert drafted.stats.num_accepted_tokens == drafted.stats.num_draft_tokens > 0


def test_a_long_prompt_is_computed_over_several_steps_without_holding_up_anybody() -> None:
    drafted = Drafted(num_blocks=400)
    prompt = [token_id % VOCAB_SIZE for token_id in range(1200)]
    drafted.run(unending(prompt, max_tokens=12))
    assert drafted.draft.num_tokens[:3] == [512, 512, 178]  # the two tokens generated meanwhile included
    tokens = [len(output.token_ids) for output in drafted.collector.outputs[0]]
    assert tokens == [1, 1, 1, 6, 3]


def test_beyond_the_drafts_own_context_nothing_is_drafted() -> None:
    drafted = Drafted(max_model_len=20)
    drafted.run(unending([1, 2, 3], max_tokens=40))
    assert 10 < drafted.stats.num_accepted_tokens == drafted.stats.num_draft_tokens < 20


def test_a_sequence_that_paused_speculating_catches_up() -> None:
    drafted = Drafted(SpeculationConfig(num_assistant_tokens=5, max_batch=1))
    drafted.collector.add(0, unending(max_tokens=120))
    for _ in range(3):
        drafted.collector.step()
    num_before = drafted.stats.num_draft_tokens
    drafted.collector.add(1, unending([4, 5], max_tokens=50))
    drafted.collector.run()
    assert drafted.collector.sequence(0).token_ids == naive_sequence(unending(max_tokens=120), 0, VOCAB_SIZE).token_ids
    assert drafted.stats.num_accepted_tokens == drafted.stats.num_draft_tokens > num_before > 0
    assert max(drafted.draft.num_tokens) > 40, "the pause was not computed in one go"


class Unheard(CheckedDraft):
    """A draft model of which every second proposal is dropped, as the scheduler drops those that cost too much."""

    is_heard = False

    def propose(self, wishes: Sequence[Wish]) -> list[Proposal]:
        """As the draft model does, or nothing."""
        self.is_heard = not self.is_heard
        proposals = super().propose(wishes)
        return proposals if self.is_heard else [Proposal(array("q"), []) for _ in wishes]


def test_drafts_that_nobody_verified_may_have_been_right(caplog: pytest.LogCaptureFixture) -> None:
    drafted = Drafted(proposer=Unheard)
    drafted.run(unending(max_tokens=120))
    assert drafted.stats.num_accepted_tokens == drafted.stats.num_draft_tokens > 60
    assert not caplog.records, "the draft model was switched off"


def test_when_blocks_run_short_sequences_go_on_without_drafts() -> None:
    drafted = Drafted(num_blocks=7)  # 23 tokens need six of four
    drafted.run(unending())
    assert 0 < drafted.stats.num_draft_tokens < 15
    assert drafted.stats.num_preemptions == 0


def test_refused_drafts_leave_nothing_behind_in_the_drafts_cache() -> None:
    drafted = Drafted()
    drafted.run(*(unending([1, 2, seed], max_tokens=60, temperature=1.0, seed=seed) for seed in range(3)))
    assert 0 < drafted.stats.num_accepted_tokens < drafted.stats.num_draft_tokens


def test_a_preempted_sequence_starts_anew_in_its_new_blocks() -> None:
    drafted = Drafted(num_blocks=26)
    for key in range(2):
        drafted.collector.add(key, unending([1, 2, key], max_tokens=60))
    drafted.collector.run()
    assert drafted.stats.num_preemptions > 0
    assert not drafted.proposer.mistakes
    assert drafted.stats.num_accepted_tokens == drafted.stats.num_draft_tokens > 0


# --- confidence -------------------------------------------------------------------------------------------------------


def test_a_draft_stops_before_the_first_token_below_the_threshold() -> None:
    request = unending(max_tokens=60)
    context = [*request.prompt_ids, *naive_sequence(request, 0, VOCAB_SIZE).token_ids]
    confidence = [_top_share(context[:end]) for end in range(4, len(context))]
    threshold = float(np.median(confidence))
    drafted = Drafted()
    drafted.run(
        msgspec.structs.replace(
            request, sampling=msgspec.structs.replace(request.sampling, assistant_confidence_threshold=threshold)
        )
    )
    position, lengths = 0, []
    while position < 58:  # the first token comes without a draft, the last one cannot be drafted
        drafts = 0
        while drafts < min(MAX_CONFIDENT_TOKENS, 58 - position) and confidence[position + drafts] >= threshold:
            drafts += 1
        lengths.append(drafts)
        position += drafts + 1
    got = [output.num_draft_tokens for output in drafted.collector.outputs[0]][1:]
    assert got[: len(lengths)] == lengths
    assert {0, 1} < set(lengths)


def _top_share(context: Sequence[int]) -> float:
    logits = last_logits(context, VOCAB_SIZE)[0].astype(np.float64)
    return float(np.exp(logits.max()) / np.exp(logits).sum())


def test_beyond_its_own_short_regime_a_draft_guesses_nothing() -> None:
    drafted = Drafted(SpeculationConfig(num_assistant_tokens=4), long_context_from=12)
    drafted.run(make_request([1, 2, 3], max_tokens=30, ignore_eos=True))
    assert 0 < drafted.stats.num_draft_tokens <= 12 - 3
    assert drafted.draft.num_tokens
    assert sum(drafted.draft.num_tokens) <= 12 + drafted.stats.num_draft_tokens


def test_a_sequence_that_begins_anew_in_other_blocks_is_guessed_from_those() -> None:
    drafted = Drafted(SpeculationConfig(num_assistant_tokens=2), model=FakeModel(long_context_from=14))
    drafted.run(*(make_request([1, 2, first], max_tokens=20 + first, ignore_eos=True) for first in range(4)))
    assert drafted.stats.num_draft_tokens


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "needed"), [("vocab_size", 16, VOCAB_SIZE), ("num_blocks", 8, 64), ("block_size", 8, 4)]
)
def test_a_draft_of_another_size_is_refused_with_both_numbers(name: str, size: int, needed: int) -> None:
    sizes: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "num_blocks": 64, "block_size": 4}
    draft, target = FakeRunner(**sizes | {name: size}), FakeRunner(**sizes)
    with pytest.raises(ValueError, match=f"{name} of the draft model is {size}, must be {needed}"):
        DraftModelProposer(draft, target)


def test_a_model_whose_layers_all_have_windows_takes_no_draft() -> None:
    draft, target = FakeRunner(vocab_size=VOCAB_SIZE), FakeRunner(vocab_size=VOCAB_SIZE, windows=(8, 4))
    with pytest.raises(ValueError, match=r"all layers of the model have windows \(of 8 tokens\)"):
        DraftModelProposer(draft, target)


def test_closing_the_proposer_closes_its_runner() -> None:
    draft = FakeRunner(vocab_size=VOCAB_SIZE)
    DraftModelProposer(draft, FakeRunner(vocab_size=VOCAB_SIZE)).close()
    assert draft.is_closed
