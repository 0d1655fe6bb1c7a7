"""The text format of protocol buffers, in OVMS's graphs."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.config.pbtxt import Field, Message, PbtxtError, parse_pbtxt
from tests.support.tables import table


@table(
    ("text", "fields"),
    [
        ("", ()),
        ("a: 1 b: -2.5e3", (("a", "1"), ("b", "-2.5e3"))),
        ("a: true, b: LM_CB; c: 0x1f", (("a", "true"), ("b", "LM_CB"), ("c", "0x1f"))),
        ("# first\na: 'x' # second\n", (("a", "x"),)),
        (r"""a: "x\"y" 'z' "\n\x41\101\u00e9" """, (("a", 'x"yz\nAAé'),)),
        ("a: ['p', 'q'] b: []", (("a", "p"), ("a", "q"))),
        ("[type.googleapis.com / x.Y]: 3 [x.Z.ext]: 4", (("[type.googleapis.com/x.Y]", "3"), ("[x.Z.ext]", "4"))),
    ],
)
def test_fields_are_read_unchanged(text: str, fields: tuple[tuple[str, str], ...]) -> None:
    assert tuple((one.name, one.value) for one in parse_pbtxt(text).fields) == fields


def test_messages_nest_in_either_bracket_with_and_without_a_colon() -> None:
    expected = Message((Field("b", "1", 1), Field("c", Message((Field("d", "2", 1),)), 1)))
    for text in ("a { b: 1 c { d: 2 } }", "a: < b: 1 c: { d: 2 } >"):
        assert list(parse_pbtxt(text).messages("a")) == [expected]


def test_every_field_has_its_line() -> None:
    assert [one.line for one in parse_pbtxt("a: 1\n\nb: 2 c {\n}\n").fields] == [1, 3, 3]


@table(
    ("text", "problem"),
    [
        ("a", "line 1: the end stands where a colon or a message is expected"),
        ("a: {\nb: 1", "line 2: the end stands where `}` is expected"),
        ("a: 1\n}", "line 2: `}` stands where a name or a value is expected"),
        ("a: 'x", "line 1: `'` is unknown"),
        ("a: [1, 2", "line 1: the end stands where `]` is expected"),
        ("a 1", "line 1: `1` stands where a colon or a message is expected"),
        ("[a: 1", "line 1: `:` stands where a name or a value is expected"),
        (r"a: '\xff'", "line 1: the end stands where a string of UTF-8 is expected"),
        ("a {" * 100, "line 1: messages are nested more than 64 deep"),
    ],
)
def test_a_format_error_names_the_line(text: str, problem: str) -> None:
    with pytest.raises(PbtxtError) as caught:
        parse_pbtxt(text)
    assert str(caught.value) == problem


@given(st.text(alphabet="ab:{}<>[],;'\"\\#/ 1\n", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(PbtxtError):
        parse_pbtxt(text)
