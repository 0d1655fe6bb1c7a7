"""A sequence's sampling memory: taking tokens in, giving them back, forking."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sample.sampler_state import SamplerState
from tests.support.sampling import make_request, make_state

VOCAB_SIZE = 12


class Counter:
    """A TokenMasker without rollback: allows token n at position n, and counts the tokens it consumed."""

    def __init__(self, position: int = 0) -> None:
        self.position = position

    def fork(self) -> Counter:
        return Counter(self.position)

    def fill_mask(self, bitmask_row: Any) -> None:
        bitmask_row[:] = 0
        bitmask_row[0] = 1 << self.position

    def advance(self, token_id: int) -> bool:
        allowed = token_id == self.position
        self.position += allowed
        return allowed

    def validate(self, token_ids: Any) -> int:
        return next((n for n, token_id in enumerate(token_ids) if token_id != self.position + n), len(token_ids))

    @property
    def is_finished(self) -> bool:
        return False


class RewindingCounter(Counter):
    """The same with rollback."""

    def fork(self) -> RewindingCounter:
        return RewindingCounter(self.position)

    def rollback(self, num_tokens: int) -> None:
        self.position -= num_tokens


EVERYTHING: dict[str, Any] = {
    "temperature": 0.8,
    "top_p": 0.9,
    "repetition_penalty": 1.3,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "min_tokens": 3,
    "bad_word_ids": ((4,), (5, 6), (3, 5, 6)),
    "prompt_ids": (3, 3, 5),
}


def distribution(state: SamplerState) -> list[float]:
    """What the state makes of fixed logits."""
    logits = np.linspace(-1, 2, VOCAB_SIZE, dtype=np.float32)
    return [float(value) for value in Sampler(VOCAB_SIZE).distribution(logits, state)]


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 5])
def test_rollback_restores_the_state_before_the_tokens(num_tokens: int) -> None:
    sampler, tokens = Sampler(VOCAB_SIZE), (5, 7, 7, 3, 9)
    state = make_state(sampler, tokens, **EVERYTHING)
    state.rollback(num_tokens)
    shorter = make_state(sampler, tokens[: len(tokens) - num_tokens], **EVERYTHING)
    assert distribution(state) == distribution(shorter)
    assert state.num_generated == shorter.num_generated
    state.observe(8)
    shorter.observe(8)
    assert distribution(state) == distribution(shorter)


def test_rollback_of_more_than_was_observed_is_refused() -> None:
    state = make_state(Sampler(VOCAB_SIZE), (1, 2), **EVERYTHING)
    with pytest.raises(ValueError, match="num_tokens 3: must be from 0 to 2"):
        state.rollback(3)


@pytest.mark.parametrize("masker", [Counter(), RewindingCounter()], ids=["replayed", "rewound"])
def test_rollback_moves_the_grammar_back_over_accepted_tokens_only(masker: Counter) -> None:
    state = make_state(Sampler(VOCAB_SIZE), (0, 1, 9, 2), masker=masker)  # 9 is refused
    assert distribution(state)[3] == 1.0
    state.rollback(1)
    assert distribution(state)[2] == 1.0
    state.rollback(1)
    assert distribution(state)[2] == 1.0
    state.rollback(1)
    assert distribution(state)[1] == 1.0
    assert masker.position == 0  # the request's own masker stays at the start: sibling sequences fork it too


def test_a_fork_continues_on_its_own() -> None:
    sampler = Sampler(VOCAB_SIZE)
    parent = make_state(sampler, (0, 1), masker=Counter(), repetition_penalty=1.5, temperature=1.0)
    before = distribution(parent)
    child = parent.fork(1)
    assert distribution(child) == before
    for token_id in (2, 3):
        child.observe(token_id)
    assert distribution(parent) == before
    assert distribution(child)[4] == 1.0
    assert (child.num_generated, child.sequence_index) == (4, 1)
    child.rollback(4)
    assert distribution(child)[0] == 1.0


def test_a_fork_draws_other_numbers_than_its_parent() -> None:
    parent = make_state(Sampler(VOCAB_SIZE), (1, 2), temperature=1.0)
    assert parent.fork(1).uniform(0) != parent.uniform(0)
    assert parent.fork(0).uniform(0) == parent.uniform(0)


def test_a_state_rebuilt_from_its_tokens_equals_the_one_that_grew() -> None:
    """Preemption recomputes: a sequence may get a fresh state that observes its tokens at once."""
    sampler = Sampler(VOCAB_SIZE)
    grown = sampler.new_state(make_request(**EVERYTHING), 2)
    tokens = []
    for _ in range(6):
        sampled = sampler.sample(np.linspace(-1, 2, VOCAB_SIZE, dtype=np.float32)[None].copy(), [grown])
        tokens.append(int(sampled.token_ids[0]))
        grown.observe(tokens[-1])
    rebuilt = sampler.new_state(make_request(**EVERYTHING), 2)
    for token_id in tokens:
        rebuilt.observe(token_id)
    assert distribution(rebuilt) == distribution(grown)
    assert rebuilt.uniform(0) == grown.uniform(0)


def test_many_different_tokens_are_all_remembered() -> None:
    sampler = Sampler(1000)
    state = make_state(sampler, tuple(range(500)), presence_penalty=2.0, prompt_ids=())
    logits = sampler.process(np.zeros((1, 1000), dtype=np.float32), [state])[0]
    assert np.unique(logits[:500]).size == np.unique(logits[500:]).size == 1
    assert logits[999] - logits[0] == pytest.approx(2.0, abs=1e-5)


def test_prompt_ids_beyond_the_vocabulary_are_left_out_of_the_penalties() -> None:
    """Placeholders of images have ids that no logit belongs to."""
    sampler = Sampler(4)
    states = [make_state(sampler, prompt_ids=(1, 5), repetition_penalty=2.0), make_state(sampler, prompt_ids=())]
    logits = sampler.process(np.ones((2, 4), dtype=np.float32), states)
    assert logits[0, 1] < logits[0, 0]
    assert np.unique(logits[1]).size == 1
