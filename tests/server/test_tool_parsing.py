"""Model output becomes content, reasoning and tool calls, however it is cut into pieces."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.output_texts import Output, calls_of, output_format, parsed, parser, pieces

OSLO = '{"name": "weather", "arguments": {"city": "Oslo"}}'
SUM = '{"name": "add", "arguments": {"a": 1, "b": {"deep": ["}", "\\"]"]}}}'
OSLO_CALL = ("id0", "weather", '{"city": "Oslo"}')
SUM_CALL = ("id1", "add", '{"a": 1, "b": {"deep": ["}", "\\"]"]}}')


def whole(tools: str, text: str, *, covered: bool = False) -> Output:
    """The outcome of a text that comes in one piece."""
    return parsed(parser(output_format(tools), covered=covered), [text])


@pytest.mark.parametrize("covered", [False, True])
@pytest.mark.parametrize(
    ("tools", "text", "content", "calls"),
    [
        ("hermes", "Hello there.", "Hello there.", []),
        ("hermes", f"<tool_call>\n{OSLO}\n</tool_call>", "", [OSLO_CALL]),
        ("hermes", f"I look.\n\n<tool_call>{OSLO}</tool_call>\n", "I look.", [OSLO_CALL]),
        ("hermes", f"<tool_call>\n{OSLO}\n</tool_call>\n<tool_call>\n{SUM}\n</tool_call>", "", [OSLO_CALL, SUM_CALL]),
        ("hermes", f"<tool_call>{OSLO}</tool_call> done <b>", "done <b>", [OSLO_CALL]),
        ("hermes", f"<tool_call>{OSLO}<tool_call>{SUM}", "", [OSLO_CALL, SUM_CALL]),
        ("hermes", f"<tool_call>{OSLO}</tool_", "", [OSLO_CALL]),
        ("mistral", f"[TOOL_CALLS] [{OSLO}, {SUM}]", "", [OSLO_CALL, SUM_CALL]),
        ("mistral", f"[TOOL_CALLS][{OSLO}]", "", [OSLO_CALL]),
        ("mistral", f"[TOOL_CALLS]{OSLO}", "", [OSLO_CALL]),
        ("mistral", f"Wait. [TOOL_CALLS] [{OSLO}] So.", "Wait.So.", [OSLO_CALL]),
        ("llama3_json", OSLO.replace("arguments", "parameters"), "", [OSLO_CALL]),
        ("llama3_json", f"{OSLO}; {SUM}", "", [OSLO_CALL, SUM_CALL]),
        ("llama3_json", f"<|python_tag|>{OSLO}", "", [OSLO_CALL]),
        ("json", f"{OSLO}", "", [OSLO_CALL]),
    ],
)
def test_calls_are_found_and_the_rest_is_content(
    tools: str, text: str, content: str, calls: list[tuple[str | None, str | None, str]], covered: bool
) -> None:
    assert whole(tools, text, covered=covered) == Output(content, "", calls)


@pytest.mark.parametrize(
    ("tools", "text"),
    [
        ("hermes", "<tool_call>\nnot json\n</tool_call>"),
        ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": }}\n</tool_call>'),
        ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Os'),
        ("hermes", '<tool_call>{"city": "Oslo"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "weather", "arguments": ["Oslo"]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "weather", "arguments": {"a": NaN}}</tool_call>'),
        ("hermes", '<tool_call>{"name": 7, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "weather"]</tool_call>'),
        ("hermes", "  <tool_call>  "),
        ("hermes", "a <tool_cal"),
        ("mistral", "[TOOL_CALLS] [] "),
        ("mistral", "[TOOL_CALLS] [none]"),
        ("mistral", "[TOOL_CALLS] weather(Oslo)"),
        ("llama3_json", '{"name": "stranger", "parameters": {}}'),
        ("llama3_json", '{"answer": {"name": "weather"}} '),
        ("llama3_json", f"The call is {OSLO}"),
        ("llama3_json", '<|python_tag|>weather.call(city="Oslo")'),
        ("llama3_json", "\n "),
        ("json", '{"name": "weather", "arguments": '),
    ],
)
def test_what_is_no_call_stays_content_to_the_last_character(tools: str, text: str) -> None:
    assert whole(tools, text) == Output(text, "", [])


def test_a_good_call_is_found_after_a_bad_one() -> None:
    bad = '<tool_call>{"name": weather}</tool_call>\n'
    output = whole("hermes", f"{bad}<tool_call>{OSLO}</tool_call>")
    assert (output.content, calls_of(output)) == (bad.strip(), [("weather", {"city": "Oslo"})])


def test_a_bad_entry_in_a_list_becomes_content_and_the_good_ones_stay_calls() -> None:
    output = whole("mistral", f"[TOOL_CALLS] [{OSLO}, oops]")
    assert output == Output(", oops]", "", [OSLO_CALL])


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"arguments": {"city": "Oslo"}, "name": "weather"}', {"city": "Oslo"}),
        ('{"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}', {"city": "Oslo"}),
        ('{"name": "weather", "arguments": {"text": "two\nlines"}}', {"text": "two\nlines"}),
        ('{"name": "weather", "id": {"x": 1}, "parameters": {"city": "é"}}', {"city": "é"}),
        ('{"name": "weather"}', {}),
        ('{"name": "weather", "arguments": null}', {}),
    ],
)
def test_unusual_but_clear_calls_are_understood(written: str, arguments: object) -> None:
    assert calls_of(whole("hermes", f"<tool_call>{written}</tool_call>")) == [("weather", arguments)]


def test_arguments_are_given_on_as_they_were_written() -> None:
    output = whole("hermes", '<tool_call>{"name": "add", "arguments": {"a":1.0,  "a":1e3}}</tool_call>')
    assert output.calls[0][2] == '{"a":1.0,  "a":1e3}'


def test_a_json_answer_that_cannot_be_a_call_is_not_held_back() -> None:
    made = parser(output_format("llama3_json"))
    assert made.push('{"answer"', is_last=False).content == '{"answer"'


def test_arguments_stream_when_a_grammar_guarantees_them() -> None:
    made = parser(output_format(), covered=True)
    assert made.push('<tool_call>\n{"name": "weather", "arg', is_last=False).tool_calls == ()
    (first,) = made.push('uments": {"ci', is_last=False).tool_calls
    assert (first.index, first.id, first.name, first.arguments) == (0, "id0", "weather", '{"ci')
    (second,) = made.push('ty": "Os', is_last=False).tool_calls
    assert (second.index, second.id, second.name, second.arguments) == (0, None, None, 'ty": "Os')
    (third,) = made.push('lo"}}\n</tool', is_last=False).tool_calls
    assert third.arguments == 'lo"}'
    assert made.push("_call>", is_last=True) == ("", "", ())


def test_arguments_wait_for_their_end_when_nothing_guarantees_them() -> None:
    made = parser(output_format())
    assert made.push('<tool_call>\n{"name": "weather", "arguments": {"city": "Os', is_last=False).tool_calls == ()
    (only,) = made.push('lo"}}', is_last=False).tool_calls
    assert (only.name, only.arguments) == ("weather", '{"city": "Oslo"}')


def test_a_guaranteed_call_that_is_cut_off_keeps_what_was_given_on() -> None:
    output = whole("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Os', covered=True)
    assert output == Output("", "", [("id0", "weather", '{"city": "Os')])


def test_a_guaranteed_call_that_is_cut_off_before_its_arguments_is_content() -> None:
    text = '<tool_call>{"name": "weat'
    assert whole("hermes", text, covered=True) == Output(text, "", [])


@pytest.mark.parametrize(
    ("prompt_text", "text", "reasoning", "content"),
    [
        ("", "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("", "\n<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("...<think>\n", "Hm.\n</think>\n\nYes. ", "Hm.", "Yes. "),
        ("...<think>\n", "Hm. </thin", "Hm. </thin", ""),
        ("...<think>\n", "Hm.\n", "Hm.\n", ""),
        ("...<think>\n", "\n\n</think>\n\nYes.", "", "Yes."),
        ("...</think>\n\n", "Yes.", "", "Yes."),
        ("", "Yes, <think> is a tag.", "", "Yes, <think> is a tag."),
        ("", "  indented", "", "  indented"),
        ("", "<thin", "", "<thin"),
        ("", "", "", ""),
    ],
)
def test_reasoning_is_told_from_the_answer(prompt_text: str, text: str, reasoning: str, content: str) -> None:
    layout = output_format(reasoning="think")
    for texts in ([text], [*text, ""]):
        assert parsed(parser(layout, prompt_text), texts) == Output(content, reasoning, [])


def test_models_that_always_think_need_no_mark_at_the_beginning() -> None:
    layout = output_format(reasoning="deepseek_r1")
    assert parsed(parser(layout), ["Hm.</think>Yes."]) == Output("Yes.", "Hm.", [])


def test_marks_of_calls_mean_nothing_inside_the_reasoning() -> None:
    text = f"<think>I could <tool_call>{OSLO}</tool_call></think><tool_call>{OSLO}</tool_call>"
    output = parsed(parser(output_format(reasoning="think")), [text])
    assert output == Output("", f"I could <tool_call>{OSLO}</tool_call>", [OSLO_CALL])


# --- however the text is cut ------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["weather", "add"])
PLAIN = st.text(alphabet='ab \n{}<>[]"\\,;:/_é' + string.digits, max_size=12)
FRAGMENTS = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<tool_", "[TOOL_CALLS]", "[", "]", ", ", "; ", "<|python_tag|>", "<think>",
     "</think>", '{"name": "weather", ', '"arguments": {', '"a": 1', "}}", '"', OSLO, SUM]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=4,
)
CUTS = st.lists(st.integers(min_value=0, max_value=400), max_size=12)
FORMATS = st.sampled_from(["hermes", "mistral", "llama3_json", "json"])


@given(
    FORMATS, st.lists(PLAIN | FRAGMENTS, max_size=8).map("".join), CUTS, st.booleans(), st.sampled_from([None, "think"])
)
def test_any_cut_gives_the_same_outcome(
    tools: str, text: str, cuts: list[int], covered: bool, thinks: str | None
) -> None:
    once = parsed(parser(output_format(tools, thinks), covered=covered), [text])
    assert parsed(parser(output_format(tools, thinks), covered=covered), pieces(text, cuts)) == once
    assert parsed(parser(output_format(tools, thinks), covered=covered), [*text, ""]) == once


@given(FORMATS, st.lists(PLAIN | FRAGMENTS, max_size=8).map("".join))
def test_without_a_call_every_character_is_content(tools: str, text: str) -> None:
    output = whole(tools, text)
    if not output.calls:
        assert output.content == text
    for _, name, arguments in output.calls:
        assert name in ("weather", "add")
        assert isinstance(json.loads(arguments), dict)


@given(
    st.sampled_from(["hermes", "mistral", "llama3_json"]),
    st.lists(st.tuples(NAMES, st.dictionaries(st.text(max_size=5), VALUES, max_size=3)), min_size=1, max_size=3),
    CUTS,
    st.booleans(),
)
def test_calls_that_a_model_writes_come_back_as_they_were_meant(
    tools: str, meant: list[tuple[str, dict[str, object]]], cuts: list[int], covered: bool
) -> None:
    written = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in meant]
    text = {
        "hermes": "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in written),
        "mistral": f"[TOOL_CALLS] [{', '.join(written)}]",
        "llama3_json": "; ".join(written),
    }[tools]
    output = parsed(parser(output_format(tools), covered=covered), pieces(text, cuts))
    assert (output.content, calls_of(output)) == ("", meant)
    assert len({call_id for call_id, _, _ in output.calls}) == len(meant)
