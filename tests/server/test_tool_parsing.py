"""Model output becomes content, reasoning and tool calls, however it is cut into pieces."""

from __future__ import annotations

from typing import Any

from dragoman.types import ChatPrompt
from tests.server.call_notations import NS
from tests.server.output_texts import USER, Output, calls_of, output_format, parsed, parser, request, tool
from tests.support.tables import table

OSLO = '{"name": "weather", "arguments": {"city": "Oslo"}}'
SUM = '{"name": "add", "arguments": {"a": 1, "b": {"deep": ["}", "\\"]"]}}}'
OSLO_CALL = ("id0", "weather", '{"city": "Oslo"}')
KIMI_OSLO = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    '{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>'
)
CODER_OSLO = "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
HERMES_OSLO = f"<tool_call>\n{OSLO}\n</tool_call>"
SUM_CALL = ("id1", "add", '{"a": 1, "b": {"deep": ["}", "\\"]"]}}')


def whole(tools: str, text: str, *, covered: bool = False) -> Output:
    """The outcome of a text that comes in one piece."""
    return parsed(parser(output_format(tools), covered=covered), [text])


@table("covered", [False, True])
@table(
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
        ("mistral", f"Wait. [TOOL_CALLS] [{OSLO}] So.", "Wait. So.", [OSLO_CALL]),
        ("mistral", f"Wait.[TOOL_CALLS][{OSLO}]So.", "Wait.\nSo.", [OSLO_CALL]),
        ("hermes", f"I look.\n\n<tool_call>{OSLO}</tool_call>\nI add.", "I look.\n\nI add.", [OSLO_CALL]),
        ("hermes", f"I look.<tool_call>{OSLO}</tool_call> I add.", "I look. I add.", [OSLO_CALL]),
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


@table(
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


@table(
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


@table("name", ['"a\\x"', "1"], ids=["a wrong escape", "no text"])
def test_a_guaranteed_call_with_a_name_that_is_no_text_is_content(name: str) -> None:
    text = f'<tool_call>{{"name": {name}, "arguments": {{}}}}</tool_call>'
    assert whole("hermes", text, covered=True) == Output(text, "", [])


@table(
    ("prompt_text", "text", "reasoning", "content"),
    [
        ("", "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("", "\n<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("...<think>\n", "Hm.\n</think>\n\nYes. ", "Hm.", "Yes. "),
        ("...<think>\n", "Hm. </thin", "Hm. </thin", ""),
        ("...<think>\n", "Hm.\n", "Hm.\n", ""),
        ("...<think>\n", "\n\n</think>\n\nYes.", "", "Yes."),
        ("...</think>\n\n", "Yes.", "", "Yes."),
        ("", "</think>\n\nYes.", "", "Yes."),
        ("...</think>", "</think>Yes.", "", "Yes."),
        ("", "</thin", "", "</thin"),
        ("", "Yes, </think> is a tag.", "", "Yes, </think> is a tag."),
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


@table("text", ["Hm.</think>Yes.", "<think>Hm.</think>Yes.", "\n<think>\nHm.\n</think>\n\nYes."])
def test_models_that_always_think_need_no_mark_at_the_beginning_and_may_write_it(text: str) -> None:
    for layout, prompt_text in (
        (output_format(reasoning="deepseek_r1"), ""),
        (output_format(reasoning="think"), "<think>"),
    ):
        for texts in ([text], list(text)):
            assert parsed(parser(layout, prompt_text), texts) == Output("Yes.", "Hm.", [])


@table(
    ("tools", "text", "content", "names"),
    [
        ("qwen3_coder", CODER_OSLO.removeprefix("<tool_call>\n"), "", ["weather"]),
        ("qwen3_coder", f"I look.\n{CODER_OSLO.removeprefix('<tool_call>')}Done", "I look.\n\nDone", ["weather"]),
        ("qwen3_coder", f"{CODER_OSLO}\n{CODER_OSLO.removeprefix('<tool_call>')}", "", ["weather", "weather"]),
        ("qwen3_coder", "<function=stranger>\n</function>", "<function=stranger>\n</function>", []),
        ("qwen3_coder", "Write <function=f> or <func", "Write <function=f> or <func", []),
        ("seed_oss", "<function=weather><parameter=city>Oslo</parameter></function></seed:tool_call>", "", ["weather"]),
        ("kimi_k2", KIMI_OSLO.removeprefix("<|tool_calls_section_begin|>"), "", ["weather"]),
        (
            "kimi_k2",
            f"I look. {KIMI_OSLO[28:].removesuffix('<|tool_calls_section_end|>') * 2}",
            "I look.",
            ["weather", "weather"],
        ),
        ("kimi_k2", KIMI_OSLO[28:].replace("weather", "stranger"), None, []),
        (
            "deepseek_v31",
            '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            "",
            ["weather"],
        ),
    ],
)
def test_a_call_of_a_known_tool_is_one_without_the_mark_before_it(
    tools: str, text: str, content: str | None, names: list[str]
) -> None:
    for texts in ([text], list(text)):
        output = parsed(parser(output_format(tools)), texts)
        assert output.content == (text if content is None else content)
        assert [name for name, _ in calls_of(output)] == names


@table(
    ("tools", "text", "reasoning", "content", "num_calls"),
    [
        ("hermes", f"<think>Hm.\n{HERMES_OSLO}", "Hm.", "", 1),
        ("hermes", f"<think>{HERMES_OSLO}\n</think>\n\n", "", "", 1),
        ("hermes", f"<think>Hm.{HERMES_OSLO}{HERMES_OSLO}", "Hm.", "", 2),
        ("hermes", f"<think>Hm.{HERMES_OSLO}\nI looked.", "Hm.", "I looked.", 1),
        ("hermes", f"<think>Hm.{HERMES_OSLO}</think>{HERMES_OSLO}", "Hm.", "", 2),
        ("qwen3_coder", f"<think>Hm.\n{CODER_OSLO}\n</think>Yes.", "Hm.", "Yes.", 1),
        ("kimi_k2", f"<think>Hm.{KIMI_OSLO}", "Hm.", "", 1),
        # Mentions, which are no calls.
        ("hermes", "<think>I may <tool_call> it.</think>Yes.", "I may <tool_call> it.", "Yes.", 0),
        ("hermes", "<think>As <tool_call>{}</tool_call> is", "As <tool_call>{}</tool_call> is", "", 0),
        ("hermes", '<think>A <tool_call>{"name": "stranger"}', 'A <tool_call>{"name": "stranger"}', "", 0),
        ("json", f"<think>{OSLO}</think>Yes.", OSLO, "Yes.", 0),
    ],
)
def test_a_call_within_the_reasoning_is_a_call(
    tools: str, text: str, reasoning: str, content: str, num_calls: int
) -> None:
    for texts in ([text], list(text)):
        output = parsed(parser(output_format(tools, "think")), texts)
        assert (output.reasoning, output.content) == (reasoning, content)
        assert calls_of(output) == [("weather", {"city": "Oslo"})] * num_calls


def test_what_is_said_between_a_call_and_the_end_of_the_reasoning_is_reasoning() -> None:
    text = f"<think>Hm.\n{HERMES_OSLO}\nAnd so on.</think>Yes."
    for texts in ([text], list(text)):
        output = parsed(parser(output_format(reasoning="think")), texts)
        assert output == Output("Yes.", "Hm.\nAnd so on.", [OSLO_CALL])


def test_no_call_follows_one_within_the_reasoning_where_only_one_may_be_made() -> None:
    made = output_format(reasoning="think").parser(request(parallel_tool_calls=False), "")
    assert made is not None
    output = parsed(made, [f"<think>Hm.{HERMES_OSLO}</think>{HERMES_OSLO}"])
    assert output == Output(HERMES_OSLO, "Hm.", [OSLO_CALL])


def test_a_call_that_must_follow_the_reasoning_is_not_looked_for_within_it() -> None:
    made = output_format(reasoning="think").parser(request("required", covered=True), "")
    assert made is not None
    output = parsed(made, [f"<think>{HERMES_OSLO}</think>{HERMES_OSLO}"])
    assert output == Output("", HERMES_OSLO, [OSLO_CALL])


# --- what only some formats have --------------------------------------------------------------------------------------


@table(
    ("tools", "text", "calls"),
    [
        ("mistral_args", '[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{"city": "Oslo"}', [("abcdefghi", "weather")]),
        ("mistral_args", '[TOOL_CALLS]weather{"city": "Oslo"}', [("id0", "weather")]),
        ("mistral_args", f"[TOOL_CALLS] [{OSLO}, {SUM}]", [("id0", "weather"), ("id1", "add")]),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.a.b-c:7<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_call_begin|>d<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
            [("functions.a.b-c:7", "a.b-c"), ("id1", "d")],
        ),
        (
            "deepseek_v3",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            [("id0", "add")],
        ),
        ("granite", f"<tool_call>[{OSLO}]</tool_call>", [("id0", "weather")]),
        ("granite", f"<tool_call>\n[\n  {OSLO},\n  {SUM}\n]\n</tool_call>", [("id0", "weather"), ("id1", "add")]),
        ("phi4_mini_json", f"<|tool_call|>[{OSLO}]<|/tool_call|>", [("id0", "weather")]),
        ("hunyuan_a13b", f"<tool_calls>\n{OSLO}\n{SUM}\n</tool_calls>", [("id0", "weather"), ("id1", "add")]),
        ("llama4_pythonic", "<|python_start|>[weather(city='Oslo')]<|python_end|>", [("id0", "weather")]),
        ("pythonic", "[weather (city='Oslo')]", [("id0", "weather")]),
        ("glm45", "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", [("id0", "add")]),
        ("qwen3_coder", "<tool_call><function=add></function></tool_call>", [("id0", "add")]),
        (
            "minimax_m2",
            '<invoke name="add"><parameter name="a">1</parameter></invoke></minimax:tool_call>',
            [("id0", "add")],
        ),
        ("functionary_v31", "<function=add>{}</function>\n<function=add> {}", [("id0", "add"), ("id1", "add")]),
        ("gigachat3", f"function call<|role_sep|>\n{OSLO}", [("id0", "weather")]),
        ("gigachat3", f"<|message_sep|>\n\nfunction call<|role_sep|>\n{OSLO}<|message_sep|>\n", [("id0", "weather")]),
        ("gigachat31", f"<|function_call|>{OSLO}<|message_sep|>", [("id0", "weather")]),
    ],
)
def test_variants_that_models_write_are_understood(
    tools: str, text: str, calls: list[tuple[str | None, str | None]]
) -> None:
    output = whole(tools, text)
    assert (output.content, [(call_id, name) for call_id, name, _ in output.calls]) == ("", calls)


@table(
    ("written", "value"),
    [
        ("'Oslo'", "Oslo"),
        ("'it\\'s \\u00e9'", "it's é"),
        ('"a\\/b"', "a/b"),
        ("{'a': [1, -2.5, None], 'b': (True, false)}", {"a": [1, -2.5, None], "b": [True, False]}),
        ("null", None),
        ("'a' 'b'", "ab"),
        ("'),]('", "),]("),
    ],
)
def test_literals_of_python_and_of_json_become_json(written: str, value: object) -> None:
    assert calls_of(whole("pythonic", f"[weather(city={written})]")) == [("weather", {"city": value})]


@table(
    "written",
    ["city", "1 + 1", "__import__('os').system('true')", "[x for x in y]", "f'{city}'", "b'x'", "float('inf')", "{1: 2}",
     "'x", "=1", "", "*x", "1j", "..."],
)  # fmt: skip
def test_what_is_no_literal_is_no_call_and_is_never_run(written: str) -> None:
    text = f"[weather(city={written})]"
    assert whole("pythonic", text) == Output(text, "", [])


def test_positions_without_names_are_no_arguments() -> None:
    assert whole("pythonic", "[weather('Oslo')]").calls == []


HARMONY_CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}'


@table("covered", [False, True])
@table(
    ("text", "content", "reasoning", "calls"),
    [
        ("<|channel|>final<|message|>Yes.<|return|>", "Yes.", "", []),
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.", "Yes.", "Hm.", []),
        (f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{HARMONY_CALL}<|call|>", "", "Hm.", [OSLO_CALL]),
        (f"<|channel|>analysis<|message|>A<|end|> <|start|>assistant{HARMONY_CALL}", "", "A", [OSLO_CALL]),
        (' to=functions.weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>', "", "", [OSLO_CALL]),
        (
            "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
            f"<|start|>assistant<|channel|>analysis<|message|>B<|end|><|start|>assistant{HARMONY_CALL}",
            "I look.", "A\nB", [OSLO_CALL],
        ),
        ("<|channel|>analysis<|message|>Hm, <b>", "", "Hm, <b>", []),
        ("<|channel|>anal", "", "", []),
        ("Just text.", "Just text.", "", []),
        ("to be or not", "to be or not", "", []),
    ],
)  # fmt: skip
def test_harmony_channels_are_told_apart(
    text: str, content: str, reasoning: str, calls: list[tuple[str | None, str | None, str]], covered: bool
) -> None:
    for texts in ([text], [*text, ""]):
        made = parser(output_format("gpt_oss"), "<|start|>assistant", covered=covered)
        assert parsed(made, texts) == Output(content, reasoning, calls)


@table(
    ("text", "expected"),
    [
        # Tools that the model knows by itself, and the client does not offer.
        ("<|channel|>analysis to=browser.search code<|message|>{}<|call|>", Output("", "{}", [])),
        ("<|channel|>commentary to=container.exec<|message|>ls<|call|>", Output("", "ls", [])),
        # Those that it does offer.
        ("<|channel|>analysis to=python code<|message|>print(1)<|call|>", ("python", {"code": "print(1)"})),
        (' to=python<|channel|>commentary<|message|>{"code": "1"}<|call|>', ("python", {"code": "1"})),
        ('<|channel|>commentary to=functions.python<|message|>{"code": "1"}', ("python", {"code": "1"})),
        ('<|channel|>commentary to=web.find code<|message|>{"a": "1", "b": "2"}', ("web.find", {"a": "1", "b": "2"})),
        # Nobody's.
        ("<|channel|>commentary to=user<|message|>I look.<|end|>", Output("I look.", "", [])),
    ],
)
def test_harmony_calls_of_tools_that_the_model_knows_by_itself(text: str, expected: Any) -> None:
    string = {"type": "string"}
    offered = (tool("python", code=string), tool("web.find", a=string, b=string))
    for texts in ([text], [*text, ""]):
        made = output_format("gpt_oss").parser(request(prompt=ChatPrompt((USER,), offered)), "<|start|>assistant")
        assert made is not None
        output = parsed(made, texts)
        assert output == expected if isinstance(expected, Output) else calls_of(output) == [expected]


@table(
    ("written", "arguments"),
    [
        ("<city>Oslo#</city>", {"city": "Oslo"}),
        ("<city> two\nlines #</city>", {"city": " two\nlines "}),
        ("<city>#</city>#<days>3#</days>", {"city": "", "days": 3}),
        ("<tags>#<item>a#</item>#<item>b#</item>#</tags>", {"tags": ["a", "b"]}),
        ("<tags>\n#<item>7#</item>\n#</tags>\n", {"tags": ["7"]}),
        ('<tags>["a"]#</tags>', {"tags": ["a"]}),
        ("<place>#<zip>018956#</zip>#<at>#<item>1#</item>#<item>2.5#</item>#</at>#</place>",
         {"place": {"zip": "018956", "at": [1, 2.5]}}),
        ('<place>{"zip": "1"}#</place>', {"place": {"zip": "1"}}),
        ("<place>#<place>#<zip>1#</zip>#</place>#</place>", {"place": {"place": {"zip": 1}}}),
        ("<page>#<number>2#</number>#</page>", {"page": {"number": 2}}),
        ("<page>null#</page>", {"page": None}),
        ("<days>007#</days>", {"days": 7}),
        ("<days>+7#</days>", {"days": 7}),
        ("<other>#<tag>a#</tag>#<tag>b#</tag>#</other>", {"other": {"tag": ["a", "b"]}}),
        ("<words>#<one>1#</one>#</words>", {"words": {"one": "1"}}),
        ("<other>#<a>1#</a>#<item>x#</item>#</other>", {"other": {"a": 1, "item": "x"}}),
        ("<city>a < b#<c#</city>", {"city": "a < b]<]minimax[>[<c"}),
    ],
)  # fmt: skip
def test_nested_tags_of_minimax_are_objects_and_arrays(written: str, arguments: Any) -> None:
    string, number = {"type": "string"}, {"type": "number"}
    place = {"type": "object", "properties": {"zip": string, "at": {"type": "array", "items": number}}}
    page = {"anyOf": [{"type": "object", "properties": {"number": {"type": "integer"}}}, {"type": "null"}]}
    tags = {"type": "array", "items": {"$ref": "#/$defs/Tag"}}
    words = {"type": "object", "additionalProperties": string}
    offered = tool("f", city=string, days={"type": "integer"}, tags=tags, place=place, page=page, words=words)
    offered["function"]["parameters"]["$defs"] = {"Tag": string}
    text = f'#<tool_call>\n#<invoke name="f">#{written}#</invoke>\n#</tool_call>'.replace("#", NS)
    for texts in ([text], list(text)):
        made = output_format("minimax_m3").parser(request(prompt=ChatPrompt((USER,), (offered,))), "")
        assert made is not None
        output = parsed(made, texts)
        assert (output.content, calls_of(output)) == ("", [("f", arguments)])


def test_a_message_mark_of_gigachat_that_opens_no_call_is_no_content() -> None:
    for texts in (["Hello.<|message_sep|>\n\n"], list("Hello.<|message_sep|>\n\n")):
        assert parsed(parser(output_format("gigachat3")), texts).content.strip() == "Hello."


def test_a_harmony_call_that_is_none_is_content_to_the_last_character() -> None:
    text = HARMONY_CALL.replace('"Oslo"', "Oslo")
    assert whole("gpt_oss", text) == Output(text, "", [])


def test_a_harmony_message_goes_on_where_the_prompt_stopped() -> None:
    begun = "<|start|>assistant<|channel|>final<|message|>The answer"
    assert parsed(parser(output_format("gpt_oss"), begun), [" is", " 7."]) == Output(" is 7.", "", [])
    thinking = "<|start|>assistant<|channel|>analysis<|message|>Hm"
    text = ", yes.<|end|><|start|>assistant<|channel|>final<|message|>7."
    assert parsed(parser(output_format("gpt_oss"), thinking), [text]) == Output("7.", ", yes.", [])


@table(
    ("reasoning", "text", "expected"),
    [
        ("hunyuan_a13b", "<think>\nHm.\n</think>\n<answer>\nYes.\n</answer>", Output("Yes.", "Hm.", [])),
        ("hunyuan_a13b", "<think>\nHm.\n</think>\nYes. <answer>", Output("Yes. <answer>", "Hm.", [])),
        ("ernie45", "Hm.\n</think>\n\n<response>\nYes.\n</response>\n", Output("Yes.", "Hm.", [])),
        ("granite", "Here is my thought process: Hm. Here is my response: Yes.", Output("Yes.", "Hm.", [])),
        ("seed_oss", "<seed:think>Hm.</seed:think>Yes.", Output("Yes.", "Hm.", [])),
        (
            "cohere",
            "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>",
            Output("Yes.", "Hm.", []),
        ),
    ],
)
def test_reasoning_and_answers_between_marks_of_their_own(reasoning: str, text: str, expected: Output) -> None:
    prompt_text = "<think>" if reasoning == "ernie45" else ""
    for texts in ([text], [*text, ""]):
        assert parsed(parser(output_format(reasoning=reasoning), prompt_text), texts) == expected
