"""The match finder against a plain search: where the latest of the longest matches ends, and what is known."""

from __future__ import annotations

import random
import tracemalloc
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engine.rolling.speculate.match_finder import MAX_LENGTH, NO_MATCH, SIZES, Match, MatchFinder, hashes_of

ALL = 10**6
PIECES = st.lists(
    st.one_of(st.lists(st.integers(0, 2), max_size=9), st.lists(st.integers(0, 3), min_size=48, max_size=90)),
    min_size=1,
    max_size=8,
)


def searched(values: Sequence[int], tail: Sequence[int], limit: int, min_size: int) -> Match:
    """Where the latest of the longest occurrences of the end of `tail` ends in `values`."""
    best = NO_MATCH
    for end in range(1, len(values) + 1):
        length = 0
        while length < min(limit, end, len(tail)) and values[end - 1 - length] == tail[len(tail) - 1 - length]:
            length += 1
        if length >= max(min_size, best.length):
            best = Match(end, length)
    return best


def finder_of(values: Sequence[int]) -> MatchFinder:
    finder = MatchFinder(1024, max_candidates=ALL)
    finder.extend(array("q", values))
    return finder


@given(PIECES, st.lists(st.integers(0, 2), max_size=40), st.sampled_from([4, 5, 17, MAX_LENGTH]))
def test_it_finds_the_latest_of_the_longest_matches_however_the_text_came(
    pieces: list[list[int]], tail: list[int], limit: int
) -> None:
    finder, values, text = MatchFinder(1024, max_candidates=ALL), list[int](), array("q", tail)
    for piece in pieces:
        values += piece
        finder.extend(array("q", piece))
        assert finder.longest(text, hashes_of(text), limit) == searched(values, tail, limit, 2)
    assert finder.values.tolist() == values


@given(
    st.lists(st.integers(0, 2), max_size=120),
    st.lists(st.integers(0, 2), max_size=40),
    st.integers(0, 6),
)
def test_a_match_that_is_not_longer_than_what_is_known_counts_as_none(
    values: list[int], tail: list[int], longer_than: int
) -> None:
    text = array("q", tail)
    expected = searched(values, tail, MAX_LENGTH, 2)
    found = finder_of(values).longest(text, hashes_of(text), longer_than=longer_than)
    assert found == (expected if expected.length > longer_than else NO_MATCH)


BITS = st.lists(st.integers(0, 1), max_size=40)


@given(st.lists(st.one_of(BITS, st.lists(st.integers(0, 1), min_size=48, max_size=90)), min_size=1, max_size=8), BITS)
def test_with_few_candidates_matches_are_real_and_their_size_is_that_of_the_longest(
    pieces: list[list[int]], tail: list[int]
) -> None:
    """Where no two texts of a size share a head, as those of up to eight bits do not in 2^16 heads."""
    limit = 2 * SIZES[2] - 1
    finder, values, text = MatchFinder(1 << 16, max_candidates=2), list[int](), array("q", tail)
    for piece in pieces:
        values += piece
        finder.extend(array("q", piece))
    found, longest = finder.longest(text, hashes_of(text), limit), searched(values, tail, limit, 2).length
    assert found.length <= longest
    assert found.length >= max((size for size in SIZES if size <= longest), default=0)
    assert values[found.end - found.length : found.end] == tail[len(tail) - found.length :]


def test_a_text_of_more_values_than_heads_is_found_whole() -> None:
    """Half of it comes value by value."""
    chooser = random.Random(5)
    values = [chooser.randrange(50) for _ in range(3000)]
    finder = MatchFinder(1024, max_candidates=ALL)
    finder.extend(array("q", values[:1500]))
    for value in values[1500:]:
        finder.extend(array("q", (value,)))
    for end in range(40, 3000, 370):
        tail = array("q", values[end - MAX_LENGTH : end])
        assert finder.longest(tail, hashes_of(tail)) == Match(end, MAX_LENGTH)


def test_what_was_taken_in_is_known_and_what_was_not_is_not() -> None:
    chooser = random.Random(6)
    known, foreign = (array("q", [chooser.randrange(9000) for _ in range(400)]) for _ in range(2))
    finder = MatchFinder(1024)
    finder.extend(known)
    mixed = known[100:200] + foreign + known[:50]
    held = finder.holds(mixed)
    context = SIZES[-1] - 1  # so many have too few before them
    assert not held[:context].any()
    assert held[context:100].all()
    assert not held[100 : 500 + context].any()
    assert held[500 + context :].all()
    held = finder.holds(foreign + foreign[50:200])
    assert not held[: 400 + context].any()
    assert held[400 + context :].all(), "what stood there before is known, too"


@pytest.mark.parametrize("num_values", [0, 5])
def test_nothing_is_known_to_an_empty_finder_or_of_a_short_text(num_values: int) -> None:
    values = array("q", range(num_values))
    assert not MatchFinder(1024).holds(values).any()
    assert not finder_of(range(30)).holds(values).any()
    assert MatchFinder(1024).longest(values, hashes_of(values)) == NO_MATCH


def test_a_value_takes_less_than_fifty_bytes() -> None:
    values = array("q", range(8192))
    tracemalloc.start()
    try:
        finder = MatchFinder(8192)
        finder.extend(values)
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(finder) == 8192
    assert num_bytes < 50 * 8192
