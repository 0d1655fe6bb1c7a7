"""Reasoning ends after so many tokens, or where it repeats itself; content that does so is found, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dragoman.tokenizer.answer_watch import AnswerWatch
from dragoman.tokenizer.base import TokenPieces
from dragoman.types import RepetitionDetection, Thinking
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.tables import table

TOKENIZER = ByteTokenizer()
PIECES = TokenPieces(TOKENIZER)
CLOSING = tuple(b"</t>")


def watch(repetition: RepetitionDetection | None = None, **thinking: Any) -> AnswerWatch:
    """A watch of reasoning between `<t>` and `</t>`, or `!`."""
    return AnswerWatch(PIECES, Thinking("<t>", ("</t>", "!"), CLOSING, **thinking), repetition)


def written(watching: AnswerWatch, model: str | bytes, most: int = 60) -> str:
    """The text of an answer for which the model writes that, as far as it may."""
    text, wanted = b"", list(model.encode() if isinstance(model, str) else model)
    while (wanted or watching.forced_ids) and len(text) < most:
        token_id = watching.forced_ids[0] if watching.forced_ids else wanted.pop(0)
        if watching.ends_with(token_id):
            return text.decode("utf-8", "replace") + "|"
        watching.advance(token_id)
        text += bytes([token_id])
    return text.decode("utf-8", "replace")


@table(
    ("thinking", "model", "expected"),
    [
        ({"is_open": True, "budget": 3}, "abcdef", "abc</t>def"),
        ({"is_open": True, "budget": 0}, "abc", "</t>abc"),
        ({"is_open": True, "budget": 9}, "ab</t>cdefghijklm", "ab</t>cdefghijklm"),
        ({"is_open": True, "budget": 3}, "ab!cdefghijklm", "ab!cdefghijklm"),
        ({"budget": 2}, " \n<t>abcd", " \n<t>ab</t>cd"),
        ({"budget": 2}, "abcd<t>efgh", "abcd<t>efgh"),
        ({"budget": 2}, "<to>abcd", "<to>abcd"),
        ({"budget": 2}, "</t>abcd", "</t>abcd"),
        ({}, "<t>abcdefgh", "<t>abcdefgh"),
        ({"budget": 7, "recurs": True}, "a<t>bc</t>d<t>efg</t>h<t>ijk", "a<t>bc</t>d<t>ef</t>g</t>h<t></t>ijk"),
        ({"budget": 1, "recurs": True, "reclosing_ids": tuple(b"!")}, "<t>ab<t>cd", "<t>a</t>b<t>!cd"),
    ],
)
def test_reasoning_ends_with_its_budget(thinking: dict[str, Any], model: str, expected: str) -> None:
    assert written(watch(**thinking), model) == expected


def test_reasoning_ends_after_whole_characters_or_four_more_tokens() -> None:
    assert written(watch(is_open=True, budget=2), "a€bc") == "a€</t>bc"
    assert written(watch(is_open=True, budget=1), b"\xf0\xf0\xf0\xf0\xf0ab").startswith("�����</t>ab")


LOOPS = RepetitionDetection(max_pattern_size=3, min_pattern_size=1, min_count=3)


def test_repeated_reasoning_ends_and_repeated_content_only_on_request() -> None:
    assert written(watch(is_open=True, repetition=None), "abababababab") == "abababababab"
    looping = {"is_open": True}
    thought = Thinking("<t>", ("</t>",), CLOSING, is_open=True, repetition=LOOPS)
    assert written(AnswerWatch(PIECES, thought), "xabababcdefefefefef") == "xababab</t>cdefefefefef"
    assert written(AnswerWatch(PIECES, thought, LOOPS), "xabababcdefefefefef") == "xababab</t>cdefefe|"
    assert written(watch(LOOPS, **looping), "ababababab</t>cccc") == "ababababab</t>cc|"
    assert written(AnswerWatch(PIECES, None, LOOPS), "abcdabcdabcdabcd") == "abcdabcdabcdabcd"
    recurring = Thinking("<t>", ("</t>",), CLOSING, recurs=True, budget=1)
    assert written(AnswerWatch(PIECES, recurring, LOOPS), "<t>aaaab") == "<t>a</t>aa|"


def is_loop(tokens: Sequence[int], rule: RepetitionDetection) -> bool:
    """Whether the tokens end with a pattern so often."""
    for size in range(rule.min_pattern_size, rule.max_pattern_size + 1):
        tail = list(tokens[len(tokens) - size * rule.min_count :]) if len(tokens) >= size * rule.min_count else []
        if tail and tail == tail[:size] * rule.min_count:
            return True
    return False


@given(
    tokens=st.lists(st.integers(97, 99), max_size=40),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)).map(sorted),
    count=st.integers(2, 5),
)
def test_a_loop_is_found_at_the_token_that_completes_it(tokens: list[int], sizes: list[int], count: int) -> None:
    rule = RepetitionDetection(sizes[1], sizes[0], count)
    watching = AnswerWatch(PIECES, None, rule)
    for place, token_id in enumerate(tokens):
        twin = watching.fork()
        assert watching.ends_with(token_id) == is_loop(tokens[: place + 1], rule)
        twin.advance(98)  # what becomes of a copy changes nothing
        watching.advance(token_id)


def test_the_watch_is_over_once_the_answer_has_begun() -> None:
    watching = watch(is_open=True, budget=1)
    assert written(watching, "ab") == "a</t>b"
    assert watching.is_over
    assert AnswerWatch(PIECES, None).is_over
    assert AnswerWatch(PIECES, None, RepetitionDetection()).is_over
    assert not watch(LOOPS, is_open=True, budget=0).is_over


@table(
    ("generated", "guesses", "possible"),
    [
        ("", "abcdef", 3),
        ("ab", "abcdef", 1),
        ("abc", "</t>x", 5),
        ("abc", "</x>", 2),
        ("abc", "x", 0),
        ("ab!", "abcdef", 6),
    ],
)
def test_possible_tokens_end_with_the_budget_and_begin_with_forced_ones(
    generated: str, guesses: str, possible: int
) -> None:
    watching = watch(is_open=True, budget=3)
    for token_id in generated.encode():
        watching.advance(token_id)
    assert watching.num_possible(list(guesses.encode())) == possible
