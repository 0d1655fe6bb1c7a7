"""Lists of cores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.config.kinds import CoreList
from dragoman.cores import parse_cores, parse_nodes, show_cores
from tests.support.tables import table


@pytest.mark.parametrize(
    ("text", "cores"), [("0", {0}), ("0-3", {0, 1, 2, 3}), ("8, 0-1", {0, 1, 8}), ("2-2,2", {2}), ("07", {7})]
)
def test_a_list_names_its_cores(text: str, cores: set[int]) -> None:
    assert parse_cores(text) == cores


@table("text", ["", ",", "1-", "-1", "3-1", "a", "0-70000", "1.5", "9999999999", "²"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_cores(text)


@given(st.frozensets(st.integers(0, 300), min_size=1))
def test_what_is_shown_is_read_as_the_same(cores: frozenset[int]) -> None:
    assert parse_cores(show_cores(cores)) == cores


def test_nodes_do_not_share_cores() -> None:
    assert parse_nodes("0-1/2,4") == (frozenset({0, 1}), frozenset({2, 4}))
    for text in ("0-1/1-2", "0/", "/"):
        with pytest.raises(ValueError, match=r".*"):
            parse_nodes(text)


def test_the_option_takes_its_words_and_lists() -> None:
    assert CoreList(("auto",)).parse("AUTO") == "auto"
    assert CoreList(("auto",)).parse("3,1,2") == "1-3"
    assert CoreList(("off", "auto"), has_nodes=True).parse("0,1/2,3") == "0-1/2-3"
    for text in ("off", "0/1", "x"):
        with pytest.raises(ValueError, match=r".*"):
            CoreList(("auto",)).parse(text)
