"""Texts of ended requests as the guess: what followed there, from nobody else's text, and never too many of them."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AdapterUse, AddRequest, SequenceGroup
from dragoman.engine.rolling.sequence import Sequence as EngineSequence
from dragoman.engine.rolling.speculate.copied_text import RecentTextsProposer
from dragoman.engine.rolling.speculate.proposer import NOTHING, Basis, Proposal, Wish, evidence
from tests.engine.naive import make_request

PASSAGE = list(range(100, 140))
Texts = list[list[int]]


def sequence_of(token_ids: Iterable[int], arrival: int = 0, *, adapter: str = "", **facts: Any) -> EngineSequence:
    request = msgspec.structs.replace(make_request(token_ids), **facts)
    use = AdapterUse(adapter, 0, adapter) if adapter else None
    group = SequenceGroup(AddRequest(arrival, request, adapter=use), arrival, Sampler(32))
    return group.sequences[0]


def knowing(*texts: Iterable[int], max_tokens: int = 4096) -> RecentTextsProposer:
    """A proposer that has seen these requests end."""
    proposer = RecentTextsProposer(max_tokens)
    for text in texts:
        proposer.note_finished(sequence_of(text))
    return proposer


def proposed(proposer: RecentTextsProposer, sequence: EngineSequence, max_tokens: int = 4, **facts: Any) -> Proposal:
    return proposer.propose([Wish(sequence, max_tokens, **facts)])[0]


def guesses(proposer: RecentTextsProposer, sequence: EngineSequence, max_tokens: int = 4, **facts: Any) -> list[int]:
    return proposed(proposer, sequence, max_tokens, **facts).token_ids.tolist()


def strengths(proposal: Proposal) -> list[int]:
    return [number - evidence(Basis.RECENT_TEXT) for number in proposal.evidence]


def noise(seed: int, num_tokens: int) -> list[int]:
    chooser = random.Random(seed)
    return [chooser.randrange(10_000) for _ in range(num_tokens)]


# --- what is guessed --------------------------------------------------------------------------------------------------


def test_what_followed_in_an_ended_request_is_the_guess() -> None:
    found = proposed(knowing(PASSAGE), sequence_of([7, 8, 100, 101, 102]))
    assert found.token_ids.tolist() == [103, 104, 105, 106]
    assert strengths(found) == [3, 4, 5, 6]


def test_without_texts_and_without_a_match_there_is_no_guess() -> None:
    assert proposed(RecentTextsProposer(), sequence_of(PASSAGE)) == NOTHING
    assert proposed(knowing(PASSAGE), sequence_of([1, 2, 103])) == NOTHING
    assert proposed(knowing(PASSAGE), sequence_of([1, 100, 101]), max_ngram_size=1) == NOTHING


def test_prompt_and_answer_are_known_and_drafts_are_not() -> None:
    ended = sequence_of(PASSAGE[:20])
    ended.token_ids.extend(PASSAGE[20:30])
    ended.set_drafts(array("q", (5, 6)))
    proposer = RecentTextsProposer()
    proposer.note_finished(ended)
    assert guesses(proposer, sequence_of([0, *PASSAGE[24:27]])) == PASSAGE[27:30]


def test_the_longest_match_wins_and_of_equals_the_latest() -> None:
    first, second = [1, 2, 3, 4, *noise(1, 20)], [9, 3, 4, 5, *noise(2, 20)]
    proposer = knowing(first, second)
    assert guesses(proposer, sequence_of([7, 3, 4]), 1) == [5]
    assert guesses(proposer, sequence_of([7, 2, 3, 4], 1), 1) == first[4:5]
    assert guesses(proposer, sequence_of([7, 2, 3, 4], 2), 1, max_ngram_size=2) == [5]


def test_a_copy_goes_on_where_it_was() -> None:
    proposer = knowing([1, 2, 3, 4, 5, 6, *noise(1, 20)], [8, 4, 5, 9, *noise(2, 20)])
    sequence = sequence_of([0, 2, 3])
    assert guesses(proposer, sequence, 2) == [4, 5]
    sequence.token_ids.extend([4, 5])
    found = proposed(proposer, sequence, 1)
    assert (found.token_ids.tolist(), strengths(found)) == ([6], [4])
    assert guesses(proposer, sequence, 1, max_ngram_size=2) == [6]


def test_a_copy_that_was_left_is_found_back() -> None:
    proposer, sequence = knowing(PASSAGE), sequence_of(PASSAGE[:6])
    assert guesses(proposer, sequence, 2) == PASSAGE[6:8]
    sequence.token_ids.append(1)
    assert guesses(proposer, sequence) == []
    sequence.token_ids.append(PASSAGE[8])
    found = proposed(proposer, sequence, 2)
    assert (found.token_ids.tolist(), strengths(found)) == (PASSAGE[9:11], [1, 2])


def test_a_copy_ends_with_its_text() -> None:
    proposer = knowing(PASSAGE, noise(1, 30))
    assert guesses(proposer, sequence_of(PASSAGE[-5:-2])) == PASSAGE[-2:]
    assert guesses(proposer, sequence_of(PASSAGE[-5:], 1)) == []


# --- whose texts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "facts",
    [{"caller": "b"}, {"adapter": "other"}, {"cache_salt": "pepper"}, {}],
    ids=["caller", "adapter", "salt", "none"],
)
def test_texts_of_another_owner_are_no_guess(facts: dict[str, str]) -> None:
    owner: dict[str, Any] = {"caller": "a", "adapter": "mine", "cache_salt": "salt"}
    proposer = RecentTextsProposer()
    proposer.note_finished(sequence_of(PASSAGE, **owner))
    stranger = {**owner, **facts} if facts else {}
    assert guesses(proposer, sequence_of(PASSAGE[:9], 1, **owner)) == PASSAGE[9:13]
    assert guesses(proposer, sequence_of(PASSAGE[:9], 2, **stranger)) == []
    proposer.note_finished(sequence_of(PASSAGE[:30], 3, **stranger))  # what the other knows is not known to this one
    assert guesses(proposer, sequence_of(PASSAGE[:9], 4, **stranger)) == PASSAGE[9:13]
    assert guesses(proposer, sequence_of(PASSAGE[28:30], 5, **stranger)) == []


def test_callers_may_share_their_texts_but_adapters_and_salts_never() -> None:
    proposer = RecentTextsProposer(shares_callers=True)
    proposer.note_finished(sequence_of(PASSAGE, caller="a"))
    assert guesses(proposer, sequence_of(PASSAGE[:9], 1, caller="b")) == PASSAGE[9:13]
    assert guesses(proposer, sequence_of(PASSAGE[:9], 2, caller="b", adapter="x")) == []
    assert guesses(proposer, sequence_of(PASSAGE[:9], 3, caller="a", cache_salt="x")) == []


def occurs(passage: Sequence[int], texts: Texts) -> bool:
    """True if the passage stands in one of the texts."""
    size = len(passage)
    return any(text[begin : begin + size] == list(passage) for text in texts for begin in range(len(text) - size + 1))


OWNER_TEXTS = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 3), min_size=2, max_size=90)), max_size=20)


@given(OWNER_TEXTS, st.booleans())
def test_every_guess_stands_in_a_text_of_the_same_owner_behind_what_the_sequence_ends_with(
    owned: list[tuple[int, list[int]]], grows: bool
) -> None:
    """In a store so small that it forgets again and again, among texts that are much alike."""
    proposer = RecentTextsProposer(256)
    ended: dict[int, Texts] = {0: [], 1: [], 2: []}
    for number, (owner, text) in enumerate(owned):
        sequence = sequence_of(text[:2], number, caller=str(owner))
        steps = text[2:] if grows else [*text[2:3]]
        for token_id in steps:
            found = proposed(proposer, sequence, 5)
            if found.token_ids:
                agreeing = min(strengths(found)[0], sequence.num_tokens)
                passage = [*sequence.token_ids[-agreeing:], *found.token_ids]
                assert occurs(passage, ended[owner])
            sequence.token_ids.append(token_id)
        proposer.note_finished(sequence)
        ended[owner].append(sequence.token_ids.tolist())
        assert proposer.count_tokens() <= 256


# --- how many are kept ------------------------------------------------------------------------------------------------


def test_a_text_that_is_known_is_not_stored_again() -> None:
    prompt = noise(1, 500)
    proposer = knowing(prompt)
    num_tokens = proposer.count_tokens()
    for _ in range(3):
        proposer.note_finished(sequence_of(prompt))
        proposer.note_finished(sequence_of(prompt[100:300]))
    assert proposer.count_tokens() == num_tokens
    proposer.note_finished(sequence_of([*prompt, *PASSAGE]))  # the next turn: the same text and some more
    assert num_tokens + 40 <= proposer.count_tokens() <= num_tokens + 80
    assert guesses(proposer, sequence_of(prompt[-3:])) == PASSAGE[:4]


def test_of_a_text_that_is_changed_in_places_these_are_stored() -> None:
    text = noise(1, 500)
    proposer = knowing(text)
    num_tokens = proposer.count_tokens()
    changed = [*text[:200], 1, 2, 3, *text[200:400], *text[410:480]]
    proposer.note_finished(sequence_of(changed))
    assert proposer.count_tokens() < num_tokens + 200
    for begin in (195, 399):
        assert guesses(proposer, sequence_of(changed[begin : begin + 4], begin)) == changed[begin + 4 : begin + 8]


def test_of_texts_that_end_together_what_they_share_is_stored_once() -> None:
    shared = noise(1, 300)
    proposer = knowing(*([*shared, *noise(seed, 40)] for seed in range(2, 6)))
    assert proposer.count_tokens() < 300 + 4 * 40 + 300
    for seed in range(2, 6):
        assert guesses(proposer, sequence_of([*shared[-3:], *noise(seed, 40)[:2]], seed)) == noise(seed, 40)[2:6]


def test_too_short_a_text_is_not_kept() -> None:
    assert knowing(range(15)).count_tokens() == 0


def test_the_oldest_texts_are_forgotten_and_those_that_keep_coming_stay() -> None:
    proposer = knowing(PASSAGE, max_tokens=1000)
    once = [*range(200, 240)]
    proposer.note_finished(sequence_of(once))
    for seed in range(20):
        proposer.note_finished(sequence_of(noise(seed, 100)))
        proposer.note_finished(sequence_of(PASSAGE))
        assert proposer.count_tokens() <= 1000
    assert guesses(proposer, sequence_of(PASSAGE[:3])) == PASSAGE[3:7]
    assert guesses(proposer, sequence_of(once[:3], 1)) == []
    assert guesses(proposer, sequence_of(noise(19, 100)[:3], 2)) == noise(19, 100)[3:7]


def test_of_a_long_text_the_end_is_kept() -> None:
    text = noise(1, 5000)
    proposer = knowing(text, max_tokens=1024)
    assert 0 < proposer.count_tokens() <= 512
    assert guesses(proposer, sequence_of(text[4950:4955])) == text[4955:4959]
    assert guesses(proposer, sequence_of(text[:5], 1)) == []


def test_a_sequence_whose_source_is_forgotten_goes_on_without_it() -> None:
    proposer, sequence = knowing(PASSAGE, max_tokens=512), sequence_of(PASSAGE[:3])
    assert guesses(proposer, sequence) == PASSAGE[3:7]
    for seed in range(20):
        proposer.note_finished(sequence_of(noise(seed, 60), caller="somebody else"))
    sequence.token_ids.extend(PASSAGE[3:7])
    assert guesses(proposer, sequence) == []
    proposer.note_finished(sequence_of(PASSAGE, 1))
    sequence.token_ids.extend(PASSAGE[7:9])
    assert guesses(proposer, sequence) == PASSAGE[9:13]


def test_an_ended_or_preempted_sequence_is_forgotten_but_not_its_owners_texts() -> None:
    proposer, sequence = knowing([*PASSAGE, *noise(1, 9)], [*PASSAGE[3:6], 7, *noise(2, 30)]), sequence_of(PASSAGE[:6])
    assert guesses(proposer, sequence, 1) == PASSAGE[6:7]
    proposer.retain(set())
    reborn = sequence_of([0, *PASSAGE[4:6]])  # the same id
    assert guesses(proposer, reborn, 1) == [7]
    proposer.note_finished(reborn)
    assert guesses(proposer, sequence_of([1, *PASSAGE[4:6]]), 1) == [7]


def test_a_closed_proposer_knows_nothing() -> None:
    proposer = knowing(PASSAGE)
    proposer.close()
    assert proposer.count_tokens() == 0
    assert guesses(proposer, sequence_of(PASSAGE[:9])) == []


def test_too_small_a_store_is_refused() -> None:
    with pytest.raises(ValueError, match="max_tokens is 255, at least 256 are needed"):
        RecentTextsProposer(255)
