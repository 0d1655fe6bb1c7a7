"""Stop strings: found across tokens, earliest first, and never shown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.tokenizer.base import TokenPieces
from dragoman.tokenizer.stop_strings import StopOnTokens, StopScanner
from dragoman.types import StopStrings, Unsearched
from tests.support.byte_tokenizer import EOS_ID, ByteTokenizer
from tests.support.tables import table

# Few letters, so that stop strings overlap each other and themselves.
letters = st.text("ab\n", max_size=12)
stop_sets = st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=4)


def first_match(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """Start and end of the match, by the definition: look at every end, shortest text first."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end - max(map(len, found)), end
    return None


def open_tail(text: str, stops: Sequence[str]) -> str:
    """The longest end of the text with which a stop string begins, by the definition."""
    ends = [text[begin:] for begin in range(len(text) + 1)]
    return next(end for end in ends if any(stop.startswith(end) and stop != end for stop in stops))


@given(pieces=st.lists(letters, max_size=8), stops=stop_sets)
@example(pieces=["a", "aab"], stops=["aab"])
@example(pieces=["ab", "a"], stops=["abb", "ba"])
@example(pieces=["abab"], stops=["bab", "abab"])
def test_the_first_complete_stop_string_is_found_wherever_the_text_is_split(
    pieces: list[str], stops: list[str]
) -> None:
    scanner = StopScanner(stops)
    text = ""
    for piece in pieces:
        begin = len(text) - len(scanner.tail)
        text += piece
        match = scanner.push(piece)
        if match is not None:
            assert (begin + match.start, begin + match.end) == first_match(text, stops)
            assert text[begin + match.start : begin + match.end] == match.stop
            return
        assert first_match(text, stops) is None
        assert scanner.tail == open_tail(text, stops)


def test_skipped_text_ends_nothing_but_a_stop_string_may_begin_in_it() -> None:
    scanner = StopScanner(["END", "."])
    scanner.skip("one. two. EN")
    assert scanner.tail == "EN"
    match = scanner.push("D.")
    assert match is not None
    assert match.stop == "END"


def test_a_stop_string_inside_a_skipped_beginning_is_not_found_later() -> None:
    scanner = StopScanner(["aXb", "X"])
    scanner.skip("aX")
    assert scanner.push("c") is None
    assert scanner.tail == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopScanner(["", "a"])


@given(data=st.binary(max_size=12), stops=stop_sets, min_tokens=st.integers(0, 6))
@example(data="é\n".encode(), stops=["\n"], min_tokens=0)
def test_the_criterion_on_tokens_agrees_with_the_text(data: bytes, stops: list[str], min_tokens: int) -> None:
    letters_only = bytes(b"ab\n"[byte % 3] for byte in data)
    criterion = StopOnTokens(TokenPieces(ByteTokenizer()), StopStrings(tuple(stops)), min_tokens)
    for size in range(1, len(letters_only) + 1):
        text = letters_only[:size].decode()
        ends_with_stop = any(text.endswith(stop) for stop in stops)
        assert criterion(list(letters_only[:size])) == (ends_with_stop and size >= min_tokens)


def test_the_criterion_finds_a_stop_string_inside_the_last_token_and_across_hidden_ones() -> None:
    class Syllables(ByteTokenizer):
        def token_bytes(self, token_id: int, *, at_start: bool = False) -> bytes:
            return {1: b"so on", 2: b".\n\nAnd", 3: "🍊\n".encode()}.get(token_id, super().token_bytes(token_id))

    pieces = TokenPieces(Syllables())
    assert StopOnTokens(pieces, StopStrings(("\n\n",)))([1, 2])
    assert not StopOnTokens(pieces, StopStrings(("\n\n",)))([1, 2, 1])
    assert StopOnTokens(pieces, StopStrings(("on.\n",)))([1, EOS_ID, 2])
    assert not StopOnTokens(pieces, StopStrings(("on.\n",), False))([1, EOS_ID, 2])
    assert StopOnTokens(pieces, StopStrings(("🍊\n.\n",)))([3, 2])
    assert not StopOnTokens(pieces, StopStrings(("x",)))([])


@table(
    ("text", "inside", "ends_here"),
    [
        ("a.", "", True),
        ("(a.", "", False),
        ("(a).", "", True),
        ("(a).[b.", "", False),
        ("(a)[b](c.", "", False),
        ("a.", ")", False),
        ("a).", ")", True),
        ("a)(b.", ")", False),
        ("a{b}.", "", False),
        (").", "", True),
        ("([).", "", True),
    ],
)
def test_stop_strings_between_marks_do_not_end_a_ranked_sequence(text: str, inside: str, ends_here: bool) -> None:
    unsearched = Unsearched((("(", ")"), ("[", "]"), ("{", "")), inside)
    criterion = StopOnTokens(TokenPieces(ByteTokenizer()), StopStrings((".",), True, unsearched))
    assert criterion(list(text.encode())) is ends_here
