"""Single values, as texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.config.kinds import (
    Addresses,
    Choice,
    FilePath,
    Hosts,
    ImageLimit,
    Integer,
    JsonObject,
    Kind,
    Names,
    Number,
    Switch,
    Text,
    Urls,
    Value,
    WordOrCode,
)
from dragoman.config.request_options import Repetition
from tests.support.tables import table

KINDS: list[Kind] = [
    Integer(1, 9), Integer(auto=True), Number(), Number(0.5, inclusive=True, auto=True), Switch(),
    Choice(("a", "b"), {"c": "a"}), Text(), Names(), Addresses(), FilePath(), WordOrCode(("a",), is_address=True),
    Hosts(), ImageLimit(), Urls(), JsonObject(), Repetition(),
]  # fmt: skip


@table(
    ("kind", "text", "value"),
    [
        (Integer(), "12", 12),
        (Integer(1, 3, auto=True), "AUTO", None),
        (Number(), "1e-3", 0.001),
        (Number(1, inclusive=True), "1", 1.0),
        (Number(auto=True), "auto", None),
        (Switch(), "True", True),
        (Switch(), "1", True),
        (Switch(), "no", False),
        (Choice(("a", "b"), {"c": "a"}), "C", "a"),
        (Text(), " x ", "x"),
        (Names(), "a, b c", ("a", "b", "c")),
        (Addresses(), "127.0.0.1, [::1]", "127.0.0.1,::1"),
        (FilePath(), "~/m", Path.home() / "m"),
        (Repetition(), "OFF", "off"),
        (Repetition(), '{"max_pattern_size": 0}', "off"),
        (
            Repetition(),
            '{"min_count": 3, "max_pattern_size": 8}',
            '{"max_pattern_size": 8, "min_pattern_size": 1, "min_count": 3}',
        ),
    ],
)
def test_a_legal_text_gives_its_value(kind: Kind, text: str, value: Value) -> None:
    assert kind.parse(text) == value


@table(
    ("kind", "text"),
    [
        (Integer(1), "0"), (Integer(0, 5), "6"), (Integer(), "auto"), (Integer(), "1.0"), (Integer(), ""),
        (Number(), "0"), (Number(), "-1"), (Number(), "nan"), (Number(), "inf"), (Number(), "auto"), (Number(), "x"),
        (Switch(), ""), (Switch(), "2"), (Choice(("a",)), "b"), (Text(), " "), (Names(), ","), (Names(), "a a"),
        (Addresses(), "a,,b"), (Addresses(), "a, a"),
        (FilePath(), ""), (JsonObject(), "[1]"), (JsonObject(), "{"), (JsonObject(taken=("a",)), '{"b": 1, "a": 2}'),
        (JsonObject(), "[" * 100_000), (Repetition(), "[]"), (Repetition(), "on"), (Repetition(), '{"max_pattern_size": 4}'),
        (Repetition(), '{"max_pattern_size": 4, "min_count": 1}'),
        (Repetition(), '{"max_pattern_size": 2000, "min_count": 2}'),
        (Repetition(), '{"max_pattern_size": 4, "min_pattern_size": 5, "min_count": 2}'),
        (Repetition(), '{"max_pattern_size": 4, "min_count": 2, "count": 2}'),
        (Repetition(), '{"max_pattern_size": 4.0, "min_count": 2}'),
    ],
)  # fmt: skip
def test_any_other_text_is_refused(kind: Kind, text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        kind.parse(text)


@table("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_every_kind_says_in_words_what_it_allows(kind: Kind) -> None:
    assert kind.allowed
    assert "\n" not in kind.allowed


@example("~0", FilePath())
@given(st.text(max_size=20), st.sampled_from(KINDS))
def test_no_text_makes_a_kind_raise_another_error(text: str, kind: Kind) -> None:
    try:
        value = kind.parse(text)
    except ValueError:
        return
    assert value is None or value == value  # a value that is not equal to itself (NaN) could not be compared
