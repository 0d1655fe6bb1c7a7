"""A sequence's sampling memory: taking tokens in, forking."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sample.sampler_state import SamplerState
from tests.support.maskers import ByForks
from tests.support.sampling import distribution, make_request, make_state

VOCAB_SIZE = 12


class Counter(ByForks):
    """A TokenMasker: allows token n at position n, and counts the tokens it consumed."""

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


def distribution_of(state: SamplerState) -> list[float]:
    """What the state makes of fixed logits."""
    logits = np.linspace(-1, 2, VOCAB_SIZE, dtype=np.float32)
    return [float(value) for value in distribution(Sampler(VOCAB_SIZE), logits, state)]


def test_a_grammar_stays_where_it_is_at_a_token_that_it_refuses() -> None:
    masker = Counter()
    state = make_state(Sampler(VOCAB_SIZE), (0, 1, 9, 2), masker=masker)  # 9 is refused
    assert distribution_of(state)[3] == 1.0
    assert masker.position == 0  # the request's own masker stays at the start: sibling sequences fork it too


def test_a_fork_continues_on_its_own() -> None:
    sampler = Sampler(VOCAB_SIZE)
    parent = make_state(sampler, (0, 1), masker=Counter(), repetition_penalty=1.5, temperature=1.0)
    before = distribution_of(parent)
    child = parent.fork(1)
    assert distribution_of(child) == before
    for token_id in (2, 3):
        child.observe(token_id)
    assert distribution_of(parent) == before
    assert distribution_of(child)[4] == 1.0
    assert (child.num_generated, child.sequence_index) == (4, 1)


def test_a_fork_draws_other_numbers_than_its_parent() -> None:
    sampler = Sampler(1000)
    parent = make_state(sampler, (1, 2), temperature=1.0)
    states = [parent, parent.fork(1), parent.fork(0)]
    drawn = sampler.sample(np.zeros((3, 1000), dtype=np.float32), states).token_ids.tolist()
    assert drawn[0] == drawn[2] != drawn[1]


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
    assert distribution_of(rebuilt) == distribution_of(grown)
    assert rebuilt.num_generated == grown.num_generated


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
