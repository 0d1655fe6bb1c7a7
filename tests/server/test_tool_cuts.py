"""However an answer is cut into pieces, and whatever is in it, calls come out as they were meant and nothing is lost."""

from __future__ import annotations

import json
import string
import time

from hypothesis import given
from hypothesis import strategies as st

from dragoman.server.generation.output_parsers import TOOL_FORMATS, harmony
from dragoman.types import ChatPrompt
from tests.server.call_notations import MARKS, NOTATIONS, Call
from tests.server.output_texts import USER, Output, calls_of, output_format, parsed, pieces, request, tool
from tests.support.tables import table
from tests.support.tiers import width

ANYTHING = {"type": ["integer", "number", "boolean", "null", "array", "object"]}
SHAPES = (
    tool("weather", city={"type": "string"}, days={"type": "integer"}, exact={"type": "boolean"}),
    tool("add", a={"type": "integer"}, b=ANYTHING, note={"type": "string"}),
)
PLAIN = st.text(alphabet="ab \n{}<>[]()=\"'\\,;:/_é" + string.digits, max_size=12)
FRAGMENTS = st.sampled_from(
    [*MARKS, "[", "]", ", ", "; ", "<think>", "</think>", '{"name": "weather", ', '"arguments": {', '"a": 1', "}}", '"',
     '{"name": "weather", "arguments": {"city": "Oslo"}}', '{"city": "Oslo"}', "weather(city='Oslo')"]
)  # fmt: skip
TEXTS = st.lists(PLAIN | FRAGMENTS, max_size=10).map("".join)
CUTS = st.lists(st.integers(min_value=0, max_value=600), max_size=12)
FORMATS = st.sampled_from(sorted(NOTATIONS))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet="aé'\"\\\n<>", max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
STRINGS = st.text(alphabet="ab \n{}<>[]\"\\,;:/é'", max_size=12)
CALLS = st.tuples(
    st.just("weather"),
    st.fixed_dictionaries({"city": STRINGS}, optional={"days": st.integers(), "exact": st.booleans()}),
) | st.tuples(
    st.just("add"),
    st.fixed_dictionaries(
        {"a": st.integers(), "b": VALUES.filter(lambda value: not isinstance(value, str))}, optional={"note": STRINGS}
    ),
)


def outcome(name: str, texts: list[str], *, covered: bool = False, thinks: str | None = None) -> Output:
    """What becomes of these pieces, with two tools."""
    asked = request(covered=covered, prompt=ChatPrompt((USER,), SHAPES))
    made = output_format(name, None if name == harmony.NAME else thinks).parser(asked, "")
    assert made is not None
    return parsed(made, texts)


def test_every_format_has_a_notation() -> None:
    assert set(NOTATIONS) == {*TOOL_FORMATS, harmony.NAME}


@given(FORMATS, TEXTS, CUTS, st.booleans(), st.sampled_from([None, "think", "hunyuan_a13b", "cohere"]))
def test_any_cut_gives_the_same_outcome(
    name: str, text: str, cuts: list[int], covered: bool, thinks: str | None
) -> None:
    once = outcome(name, [text], covered=covered, thinks=thinks)
    assert outcome(name, pieces(text, cuts), covered=covered, thinks=thinks) == once
    assert outcome(name, [*text, ""], covered=covered, thinks=thinks) == once


@given(st.sampled_from(sorted(TOOL_FORMATS)), TEXTS)
def test_without_a_call_every_character_is_content(name: str, text: str) -> None:
    output = outcome(name, [text])
    if not output.calls:
        assert output.content == text
    for _, called, arguments in output.calls:
        assert called
        assert isinstance(json.loads(arguments), dict)


@given(FORMATS, st.lists(CALLS, min_size=1, max_size=3), CUTS, st.booleans())
def test_calls_that_a_model_writes_come_back_as_they_were_meant(
    name: str, meant: list[Call], cuts: list[int], covered: bool
) -> None:
    notation = NOTATIONS[name]
    meant = meant[:1] if notation.is_single else meant
    output = outcome(name, pieces(notation.write(meant), cuts), covered=covered)
    assert (output.content, calls_of(output)) == ("", meant)
    assert len({call_id for call_id, _, _ in output.calls}) == len(meant)


@given(FORMATS, CALLS, CUTS)
def test_text_before_and_after_a_call_is_content(name: str, meant: Call, cuts: list[int]) -> None:
    text = NOTATIONS[name].write([meant])
    if name == harmony.NAME:
        before = (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        )
        output = outcome(name, pieces(f"{before}<|start|>assistant{text}<|call|>", cuts))
        assert (output.reasoning, output.content) == ("Hm.", "I look.")
    elif not output_format(name).names[0] or not TOOL_FORMATS[name].marked:
        output = outcome(name, pieces(f" \n{text}\n", cuts))
        assert output.content == ""
    else:
        output = outcome(name, pieces(f"I look.\n{text}\nDone.", cuts))
        assert output.content == "I look.\nDone."
    assert calls_of(output) == [meant]


@table("name", sorted(NOTATIONS))
def test_guaranteed_arguments_come_before_the_call_is_complete(name: str) -> None:
    meant = ("weather", {"city": "Oslo " * 20, "days": 3, "exact": True})
    text = NOTATIONS[name].write([meant])
    asked = request(covered=True, prompt=ChatPrompt((USER,), SHAPES))
    made = output_format(name).parser(asked, "")
    assert made is not None
    early = [delta for character in text[: text.index("3")] for delta in made.push(character, is_last=False).tool_calls]
    assert (early[0].name, early[0].id) == ("weather", "functions.weather:0" if name == "kimi_k2" else early[0].id)
    given_on = "".join(delta.arguments for delta in early)
    assert json.dumps("Oslo " * 20) in given_on
    assert len(early) >= 2


@table("name", width(sorted(NOTATIONS), sorted(NOTATIONS)[::3]))  # most formats share their loops
def test_long_answers_take_no_longer_than_their_length(name: str) -> None:
    """Who looks at all of the text again for each piece takes far longer."""
    long_call: Call = ("weather", {"city": "x y\n" * 8_000})
    texts = (NOTATIONS[name].write([long_call]), "<|tool_call_begin|>" * 1_000, "[" * 8_000, " " * 20_000)
    begin = time.process_time()
    for text in texts:
        outcome(name, [text[i : i + 4] for i in range(0, len(text), 4)] + [""], covered=text is texts[0])
    assert time.process_time() - begin < 5.0
