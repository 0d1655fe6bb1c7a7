"""DRY against a plain definition of it: which tokens it penalises, and by how much, along whole sequences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sample.sampler_state import Breakers, TokenRepeats
from dragoman.types import SequenceBreaker
from tests.support.sampling import make_state
from tests.support.tiers import examples

VOCAB_SIZE = 8
MULTIPLIER, BASE = 0.5, 2.0


def broken_at(tokens: Sequence[int], breakers: Sequence[SequenceBreaker]) -> int:
    """Where the last breaker ends."""
    ends = [0]
    for begin, head in enumerate(tokens):
        for one in breakers:
            end = begin + 1 + len(one.tail)
            if head in one.heads and tuple(tokens[begin + 1 : end]) == one.tail:
                ends.append(end)
    return max(ends)


def penalties(
    tokens: Sequence[int], allowed: int, window: int, breakers: Sequence[SequenceBreaker]
) -> dict[int, float]:
    """What each token costs: the longest run before an earlier place of it that equals the run before the end."""
    unbroken = len(tokens) - broken_at(tokens, breakers)
    searched = list(tokens) if window < 0 else list(tokens)[max(0, len(tokens) - window) :]
    singles = {head for one in breakers if not one.tail for head in one.heads}
    lengths: dict[int, int] = {}
    for place in range(1, len(searched)):
        length = 0
        while length < place and searched[place - 1 - length] == searched[len(searched) - 1 - length]:
            length += 1
        length = min(length, unbroken)
        if length >= allowed and searched[place] not in singles:
            lengths[searched[place]] = max(length, lengths.get(searched[place], 0))
    return {token_id: MULTIPLIER * BASE ** (length - allowed) for token_id, length in lengths.items()}


tokens = st.lists(st.integers(0, 3), max_size=40) | st.lists(st.sampled_from([1, 1, 1, 2]), max_size=40)
breaker_sets = st.sampled_from(
    [
        (),
        (SequenceBreaker((3,)),),
        (SequenceBreaker((2, 3), (1,)),),
        (SequenceBreaker((0,)), SequenceBreaker((3,), (1, 2)), SequenceBreaker((7,), (9,))),
    ]
)


@settings(max_examples=examples(150))
@given(tokens, tokens, st.integers(1, 4), st.sampled_from([-1, 1, 2, 7, 20, 1000]), breaker_sets, st.data())
def test_every_token_costs_what_the_definition_says(
    prompt: list[int], answer: list[int], allowed: int, window: int, breakers: tuple[SequenceBreaker, ...], data: Any
) -> None:
    sampler = Sampler(VOCAB_SIZE)
    state = make_state(
        sampler, prompt_ids=tuple(prompt), dry_multiplier=MULTIPLIER, dry_base=BASE, dry_allowed_length=allowed,
        dry_penalty_last_n=window, dry_breakers=breakers,
    )  # fmt: skip
    flat = np.linspace(1, 2, VOCAB_SIZE, dtype=np.float32)

    def costs(of: Any) -> list[float]:
        relative = sampler.process(flat[None].copy(), [of])[0] - flat
        return [round(float(relative.max() - one), 4) for one in relative]

    def expected(seen: Sequence[int]) -> list[float]:
        found = penalties(seen, allowed, window, breakers)
        plain = [found.get(token_id, 0.0) for token_id in range(VOCAB_SIZE)]
        return [round(one - min(plain), 4) for one in plain]

    seen = list(prompt)
    assert costs(state) == pytest.approx(expected(seen), rel=1e-5, abs=1e-3)
    cut = data.draw(st.integers(0, len(answer)))
    for token_id in answer[:cut]:
        state.observe(token_id)
        seen.append(token_id)
        assert costs(state) == pytest.approx(expected(seen), rel=1e-5, abs=1e-3)
    sibling = state.fork(1)
    ahead = state.ahead(answer[cut:])
    for number, one in enumerate(ahead):
        assert costs(one) == pytest.approx(expected([*seen, *answer[cut : cut + number]]), rel=1e-5, abs=1e-3)
    for token_id in (1, 2, 1):  # after guesses that did not hold
        state.observe(token_id)
        seen.append(token_id)
    assert costs(state) == pytest.approx(expected(seen), rel=1e-5, abs=1e-3)
    assert costs(sibling) == pytest.approx(expected(seen[:-3]), rel=1e-5, abs=1e-3)


def test_a_penalty_beyond_all_numbers_leaves_a_choice() -> None:
    state = make_state(
        Sampler(3), prompt_ids=(1,) * 900 + (2,) + (1,) * 900, dry_multiplier=1000.0, dry_base=100.0, eos_token_ids={0}
    )
    sampled = Sampler(3).sample(np.array([[0.0, 50.0, 40.0]], dtype=np.float32), [state])
    assert sampled.token_ids.tolist() == [0]  # both others went on with long repetitions


@pytest.mark.parametrize("kind", ["text", "one token", "two tokens"])
def test_long_sequences_cost_no_more_than_in_proportion(kind: str) -> None:
    """With work by the square of the length the longer one would take 64 times as long."""
    rng = np.random.default_rng(0)
    times = []
    for size in (4_000, 32_000):
        made = {"text": rng.integers(0, 500, size), "one token": np.ones(size), "two tokens": np.arange(size) % 2}[kind]
        token_ids = made.astype(int).tolist()
        begin = process_time()
        repeats = TokenRepeats(token_ids, -1, Breakers(()))
        for token_id in token_ids[:40]:
            repeats.add(token_id)
            repeats.continued(2)
        times.append(process_time() - begin)
    assert times[1] < 32 * times[0]


def test_an_endless_repetition_is_left_sooner_the_higher_its_price() -> None:
    """A model that would say 1 2 3 for ever."""
    lengths = []
    for multiplier in (0.0, 0.8, 8.0):
        sampler, said = Sampler(6), [1, 2, 3]
        state = make_state(sampler, prompt_ids=(1, 2, 3), dry_multiplier=multiplier)
        for _ in range(60):
            row = np.zeros((1, 6), dtype=np.float32)
            row[0, said[-1] % 3 + 1] = 5.0
            row[0, 0] = -9.0
            token_id = int(sampler.sample(row, [state]).token_ids[0])
            state.observe(token_id)
            said.append(token_id)
        lengths.append(next((n for n, (a, b) in enumerate(pairwise(said)) if b != a % 3 + 1), 99))
    assert lengths[0] == 99 > lengths[1] > lengths[2]
