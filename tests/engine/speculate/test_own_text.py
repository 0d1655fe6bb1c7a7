"""The sequence's own text as the guess: what followed the longest earlier match of its end."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest, SequenceGroup
from dragoman.engine.rolling.sequence import Sequence as EngineSequence
from dragoman.engine.rolling.speculate.copied_text import OwnTextProposer
from dragoman.engine.rolling.speculate.proposer import NOTHING, Basis, Proposal, Wish, evidence
from tests.engine.naive import make_request


def sequence_of(token_ids: Sequence[int], arrival: int = 0) -> EngineSequence:
    return SequenceGroup(AddRequest(arrival, make_request(token_ids)), arrival, Sampler(32)).sequences[0]


def proposed(proposer: OwnTextProposer, sequence: EngineSequence, max_tokens: int = 4, **facts: Any) -> Proposal:
    return proposer.propose([Wish(sequence, max_tokens, **facts)])[0]


def guesses(proposer: OwnTextProposer, sequence: EngineSequence, max_tokens: int = 4, **facts: Any) -> list[int]:
    return proposed(proposer, sequence, max_tokens, **facts).token_ids.tolist()


def strengths(proposal: Proposal) -> list[int]:
    return [number - evidence(Basis.OWN_TEXT) for number in proposal.evidence]


def length_at(token_ids: Sequence[int], end: int) -> int:
    """How many tokens before `end` are those at the text's end, at most 32."""
    length = 0
    while length < min(end, 32) and token_ids[end - 1 - length] == token_ids[len(token_ids) - 1 - length]:
        length += 1
    return length


def continued(token_ids: Sequence[int], begin: int, num_tokens: int) -> list[int]:
    """The next tokens if each repeats the one that stands as far back as `begin` does."""
    tokens = list(token_ids)
    for offset in range(num_tokens):
        tokens.append(tokens[begin + offset])
    return tokens[len(token_ids) :]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=70), st.sampled_from([1, 2, 3, 4, 5, None]), st.integers(1, 8))
def test_a_first_look_copies_what_followed_the_longest_match_of_these_the_latest(
    token_ids: list[int], max_size: int | None, num_tokens: int
) -> None:
    longest = max_size or 32
    lengths = [min(length_at(token_ids, end), longest) for end in range(len(token_ids))]
    length = max(lengths)
    found = proposed(OwnTextProposer(), sequence_of(token_ids), num_tokens, max_ngram_size=max_size)
    if length < min(2, longest):
        assert found == NOTHING
        return
    begin = max(end for end in range(len(token_ids)) if lengths[end] == length)
    assert found.token_ids.tolist() == continued(token_ids, begin, num_tokens)
    assert strengths(found) == [min(length + place, 31) for place in range(num_tokens)]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=12))
def test_a_text_that_grows_is_continued_as_some_passage_that_agrees_for_as_long_as_is_said(
    pieces: list[list[int]],
) -> None:
    proposer, sequence = OwnTextProposer(), sequence_of([3])
    for piece in pieces:
        sequence.token_ids.extend(piece)
        text = sequence.token_ids.tolist()
        longest = max(length_at(text, end) for end in range(len(text)))
        found = proposed(proposer, sequence)
        if not found.token_ids:
            assert longest < 2
            continue
        strength = strengths(found)[0]
        assert min(2, longest) <= strength <= longest  # one token counts where none agrees for longer
        begins = [end for end in range(1, len(text)) if length_at(text, end) >= strength]
        assert found.token_ids.tolist() in [continued(text, begin, 4) for begin in begins]


def test_any_token_id_can_be_searched_for() -> None:
    """Tokens are kept as characters, of which some stand for halves of others, and there are no more than 1,114,112."""
    tokens = [0, 0xD800, 0xDC00, 0xDFFF, 0xFFFF, 0x10000, 0x10FFFF, 0x110000, 10**9, *range(0xD7F0, 0xD830)]
    for text in (tokens[:9], tokens):  # few and many at once
        sequence = sequence_of([*text, 5, *text[:3]])
        assert guesses(OwnTextProposer(), sequence) == text[3:7]


def test_a_copy_goes_on_where_it_was_although_its_words_occur_again_later() -> None:
    """`1 2` is followed by 5 6 first and by 7 8 later; who copies the first passage stays in it."""
    text = [9, 1, 2, 5, 6, 4, 3, 1, 2, 7, 8, 0, 9, 1]
    proposer, sequence = OwnTextProposer(2), sequence_of(text)
    assert guesses(proposer, sequence, 3) == [2, 5, 6]
    sequence.token_ids.append(2)
    assert guesses(proposer, sequence, 3) == [5, 6, 4]
    assert guesses(OwnTextProposer(2), sequence, 3) == [7, 8, 0]


def test_a_copy_is_left_for_a_passage_that_agrees_for_longer() -> None:
    # 3 4 follows 1 2 as well as 8 1 2; the second passage is longer than what was copied so far
    proposer, sequence = OwnTextProposer(), sequence_of([1, 2, 3, 5, 7, 8, 1, 2, 3, 6, 9, 8, 1])
    assert guesses(proposer, sequence, 2) == [2, 3]
    sequence.token_ids.extend([2, 3])
    assert guesses(proposer, sequence, 1) == [6]


def test_a_copy_that_was_left_is_found_back_by_a_single_token() -> None:
    proposer, sequence = OwnTextProposer(), sequence_of([*range(10, 30), 50, *range(10, 15)])
    assert guesses(proposer, sequence, 2) == [15, 16]
    sequence.token_ids.extend([15, 91])  # one of the guesses held; 91 stands nowhere
    assert guesses(proposer, sequence) == []
    sequence.token_ids.append(17)
    found = proposed(proposer, sequence, 3)
    assert found.token_ids.tolist() == [18, 19, 20]
    assert strengths(found) == [1, 2, 3]


@pytest.mark.parametrize("aside", [[70, 71, 72, 73, 74, 75, 76, 77, 78, 17], [70, 35]], ids=["too late", "too far"])
def test_a_copy_that_was_left_long_ago_or_far_away_is_not_found_back(aside: list[int]) -> None:
    proposer, sequence = OwnTextProposer(), sequence_of([*range(10, 40), 50, *range(10, 15)])
    assert guesses(proposer, sequence, 2) == [15, 16]
    for token_id in aside:
        sequence.token_ids.append(token_id)
        found = guesses(proposer, sequence)
    assert found == []


def test_a_copy_that_hardly_agreed_is_not_found_back() -> None:
    proposer, sequence = OwnTextProposer(), sequence_of([*range(10, 30), 50, 10, 11])
    assert guesses(proposer, sequence, 2) == [12, 13]
    for token_id in (91, 13):
        sequence.token_ids.append(token_id)
        assert guesses(proposer, sequence) == []


def test_a_single_token_is_a_match_only_for_who_asks_for_it() -> None:
    sequence = sequence_of([1, 2, 3, 1])
    assert guesses(OwnTextProposer(), sequence) == []
    assert guesses(OwnTextProposer(1), sequence, 2) == [2, 3]
    assert guesses(OwnTextProposer(), sequence, 2, max_ngram_size=1) == [2, 3]
    assert guesses(OwnTextProposer(1), sequence, max_ngram_size=2) == []


def test_strength_ends_where_nobody_tells_it_apart() -> None:
    found = proposed(OwnTextProposer(), sequence_of([*range(40), *range(30)]), 4)
    assert found.token_ids.tolist() == [30, 31, 32, 33]
    assert strengths(found) == [30, 31, 31, 31]


def test_every_sequence_is_looked_up_in_its_own_text() -> None:
    sequences = [sequence_of([1, 2, 3, 1, 2]), sequence_of([1, 2, 7, 1, 2], 1), sequence_of([1, 2, 3], 2)]
    found = OwnTextProposer().propose([Wish(sequence, 1) for sequence in sequences])
    assert [proposal.token_ids.tolist() for proposal in found] == [[3], [7], []]


@pytest.mark.parametrize("way", ["retain", "note_finished", "close"])
def test_a_sequence_that_left_is_forgotten(way: str) -> None:
    proposer, old = OwnTextProposer(), sequence_of([1, 2, 3, 1, 2])
    proposer.propose([Wish(old, 1)])
    if way == "retain":
        proposer.retain(set())
    elif way == "note_finished":
        proposer.note_finished(old)
    else:
        proposer.close()
    reborn = sequence_of([1, 2, 4, 1, 2])  # the same id, as after a preemption
    assert reborn.sequence_id == old.sequence_id
    assert guesses(proposer, reborn, 1) == [4]


def test_a_sequence_that_stays_goes_on() -> None:
    proposer, sequence = OwnTextProposer(), sequence_of([1, 2, 3, 1, 2])
    assert guesses(proposer, sequence, 1) == [3]
    proposer.retain({sequence.sequence_id})
    sequence.token_ids.extend(array("q", (3, 1)))
    assert guesses(proposer, sequence, 2) == [2, 3]
