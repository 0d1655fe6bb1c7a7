"""Prompt lookup copies what followed the end of the text before, and finds it as a plain search would."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import Sequence as EngineSequence
from dragoman.engine.rolling.sequence import SequenceGroup
from dragoman.engine.rolling.speculate.prompt_lookup import NgramIndex, PromptLookupProposer
from dragoman.engine.rolling.speculate.proposer import Wish
from tests.engine.naive import make_request


def searched(token_ids: Sequence[int], max_size: int) -> int:
    """Where the continuation of the longest n-gram begins, of equals the last; 0 if there is none."""
    for size in range(max_size, min(2, max_size) - 1, -1):
        for begin in range(len(token_ids) - size - 1, -1, -1):
            if list(token_ids[begin : begin + size]) == list(token_ids[-size:]):
                return begin + size
    return 0


def continued(token_ids: Sequence[int], begin: int, num_tokens: int) -> list[int]:
    """The next tokens if each repeats the one that stands as far back as `begin` does."""
    tokens = list(token_ids)
    for offset in range(num_tokens):
        tokens.append(tokens[begin + offset])
    return tokens[len(token_ids) :]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 8))
def test_a_first_look_copies_what_followed_the_longest_matching_ngram(
    token_ids: list[int], max_size: int, num_tokens: int
) -> None:
    begin = searched(token_ids, max_size)
    expected = continued(token_ids, begin, num_tokens) if begin else []
    assert NgramIndex(max_size).continuation(array("q", token_ids), num_tokens).tolist() == expected


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=12), st.integers(1, 4))
def test_an_index_that_grows_with_its_text_proposes_only_continuations_of_the_longest_match(
    pieces: list[list[int]], max_size: int
) -> None:
    index, token_ids = NgramIndex(max_size), array("q")
    for piece in pieces:
        token_ids.extend(piece)
        found = index.continuation(token_ids, 4).tolist()
        size = next((n for n in range(max_size, 0, -1) if searched_size(token_ids, n)), 0)
        if size < min(2, max_size):
            assert not found
            continue
        begins = [
            begin for begin in range(size, len(token_ids)) if token_ids[begin - size : begin] == token_ids[-size:]
        ]
        assert found in [continued(token_ids, begin, 4) for begin in begins]


def searched_size(token_ids: Sequence[int], size: int) -> bool:
    """True if the last `size` tokens occurred before."""
    return any(list(token_ids[b : b + size]) == list(token_ids[-size:]) for b in range(len(token_ids) - size))


def test_a_copy_goes_on_where_it_was_although_its_words_occur_again_later() -> None:
    """`1 2` is followed by 5 6 first and by 7 8 later; who copies the first passage stays in it."""
    text = [9, 1, 2, 5, 6, 4, 3, 1, 2, 7, 8, 0]
    index = NgramIndex(2)
    token_ids = array("q", [*text, 9, 1])
    assert index.continuation(token_ids, 3).tolist() == [2, 5, 6]
    token_ids.append(2)
    assert index.continuation(token_ids, 3).tolist() == [5, 6, 4]
    assert NgramIndex(2).continuation(token_ids, 3).tolist() == [7, 8, 0]


def test_a_copy_that_was_left_is_not_followed_any_longer() -> None:
    index = NgramIndex(2)
    token_ids = array("q", [1, 2, 3, 4, 5, 1, 2])
    assert index.continuation(token_ids, 2).tolist() == [3, 4]
    token_ids.extend([9, 9, 4, 5])
    assert index.continuation(token_ids, 2).tolist() == [1, 2]


# --- the proposer -----------------------------------------------------------------------------------------------------


def sequence_of(prompt_ids: Sequence[int], arrival: int = 0) -> EngineSequence:
    return SequenceGroup(arrival, arrival, make_request(prompt_ids), Sampler(32)).sequences[0]


def wish(sequence: EngineSequence, **facts: Any) -> Wish:
    return Wish(sequence, **{"max_tokens": 4, "max_ngram_size": 3, **facts})


def test_every_sequence_is_looked_up_in_its_own_text() -> None:
    sequences = [sequence_of([1, 2, 3, 1, 2]), sequence_of([1, 2, 7, 1, 2], 1), sequence_of([1, 2, 3], 2)]
    found = PromptLookupProposer().propose([wish(sequence, max_tokens=1) for sequence in sequences])
    assert [ids.tolist() for ids in found] == [[3], [7], []]


def test_a_sequence_that_left_is_forgotten() -> None:
    proposer = PromptLookupProposer()
    old = sequence_of([1, 2, 3, 1, 2])
    proposer.propose([wish(old)])
    proposer.retain(set())
    reborn = sequence_of([1, 2, 4, 1, 2])  # the same id, as after a preemption
    assert reborn.sequence_id == old.sequence_id
    assert proposer.propose([wish(reborn, max_tokens=1)])[0].tolist() == [4]


@pytest.mark.parametrize(
    ("verified", "accepted", "threshold", "num_tokens"),
    [(0, 0, 0.4, 16), (16, 16, 0.9, 16), (9, 7, 0.4, 4), (99, 0, 0.4, 1), (9, 4, 0.6, 1), (9, 0, 0.0, 16)],
)
def test_a_confidence_threshold_shortens_copies_by_how_often_they_held(
    verified: int, accepted: int, threshold: float, num_tokens: int
) -> None:
    """7 of 9 held: 0.8 for the first token, 0.41 for the fourth, 0.33 for the fifth."""
    sequence = sequence_of([*range(20), *range(3)])
    sequence.num_verified_drafts, sequence.num_accepted_drafts = verified, accepted
    (found,) = PromptLookupProposer().propose([wish(sequence, max_tokens=16, min_confidence=threshold)])
    assert len(found) == num_tokens
