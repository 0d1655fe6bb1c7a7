"""The grammar of every format: it lets calls through as models write them, and what it lets through can be read back."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from dragoman.errors import InvalidParameter
from dragoman.grammar.compiler import GrammarCompiler
from dragoman.grammar.masker import Vocabulary
from dragoman.server.generation.output_parsers import TOOL_FORMATS, OutputFormat, choose_output_format, harmony
from dragoman.server.generation.output_parsers.harmony import HarmonyOutput
from dragoman.types import ChatPrompt, GenerationRequest, Grammar, SamplingParams, ToolChoice
from tests.server.call_notations import NOTATIONS, NS, Call, Notation
from tests.server.output_texts import USER, calls_of, output_format, parsed, request, tool
from tests.support.tables import table
from tests.support.tiers import everything

NAMES = sorted(NOTATIONS)
EOS = 256
# All marks that models have as control tokens; the others are text.
CONTROL = sorted(
    {
        mark
        for known in TOOL_FORMATS.values()
        for mark in known.all_marks
        if mark.startswith(("<|", "<｜", "[")) and "\n" not in mark
    }
    | {*harmony.MARKS, "]<]minimax[>["}
    | {"<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"}
)
IDS = {mark: EOS + 1 + number for number, mark in enumerate(CONTROL)}
BYTES = [bytes([value]) for value in range(256)]
TEXT_MARKS = GrammarCompiler(Vocabulary([*BYTES, b"</s>"], frozenset((EOS,)), EOS))
TOKEN_MARKS = GrammarCompiler(
    Vocabulary([*BYTES, b"</s>", *(mark.encode() for mark in CONTROL)], frozenset((EOS, *IDS.values())), EOS)
)
TOOLS = (
    tool("weather", city={"type": "string", "maxLength": 4}, days={"type": "integer", "minimum": 0, "maximum": 9}),
    tool(
        "add",
        a={"enum": ["x", "y z"]},
        b={"type": "boolean"},
        c={"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2},
    ),
)
TOOLS[1]["function"]["parameters"]["required"] = ["a"]
OSLO: Call = ("weather", {"city": "Oslo", "days": 3})
SUM: Call = ("add", {"a": "y z", "b": True, "c": [1, 2]})
SHORT: Call = ("add", {"a": "x"})


class Named:
    """A vocabulary in which the marks are control tokens."""

    def token_to_id(self, token: str) -> int | None:
        return IDS.get(token)

    def is_special(self, token_id: int) -> bool:
        return token_id >= EOS


def layout_of(name: str, has_tokens: bool) -> OutputFormat | HarmonyOutput:
    """The format, its marks as text or as control tokens."""
    return (
        choose_output_format(None, Named(), name, "none" if name != harmony.NAME else name)
        if has_tokens
        else output_format(name)
    )


def in_tokens(notation: Notation) -> Notation:
    """The notation of a model that has a control token for a mark that is text elsewhere."""
    return notation._replace(write=lambda calls: notation.write(calls).replace("functools", "<|tool_call|>"))


def asked(choice: ToolChoice | None = "required", tools: Sequence[Any] = TOOLS, **options: Any) -> GenerationRequest:
    """A conversation with the tools."""
    return request(choice, prompt=ChatPrompt((USER,), tuple(tools)), **options)


def tokens(text: str, *, has_tokens: bool) -> list[int]:
    """The text in bytes, and in control tokens."""
    if not has_tokens:
        return list(text.encode())
    found = [(text.index(mark), -len(mark), mark) for mark in CONTROL if mark in text]
    if not found:
        return list(text.encode())
    position, _, mark = min(found)
    rest = tokens(text[position + len(mark) :], has_tokens=True)
    return [*text[:position].encode(), IDS[mark], *rest]


def allows(grammar: Grammar | None, text: str, *, has_tokens: bool = False) -> bool:
    """Whether an answer may be exactly this text."""
    assert grammar is not None
    masker = (TOKEN_MARKS if has_tokens else TEXT_MARKS).compile(grammar)
    return all(masker.advance(token_id) for token_id in [*tokens(text, has_tokens=has_tokens), EOS])


@table("has_tokens", [False, True])
@table("name", NAMES)
def test_calls_that_must_come_are_written_as_the_model_writes_them(name: str, has_tokens: bool) -> None:
    layout = layout_of(name, has_tokens)
    notation = in_tokens(NOTATIONS[name]) if has_tokens else NOTATIONS[name]
    grammar = layout.constraint(asked(), "")
    for call in (OSLO, SUM, SHORT):
        assert allows(grammar, notation.write([call]), has_tokens=has_tokens), call
    assert allows(grammar, notation.write([OSLO, SUM][: 1 if notation.is_single else 2]), has_tokens=has_tokens)
    wrong: list[Call] = [
        ("wether", {"city": "Oslo", "days": 3}),
        ("weather", {"city": "Oslo"}),
        ("weather", {"city": "Oslo", "days": "many"}),
        ("weather", {"city": "Trondheim", "days": 3}),
        ("weather", {"city": "Oslo", "days": 3, "extra": 1}),
        ("add", {"a": "z"}),
        ("add", {"a": "x", "b": 1}),
    ]
    for call in wrong:
        assert not allows(grammar, notation.write([call]), has_tokens=has_tokens), call
    assert not allows(grammar, f"Hello {notation.write([OSLO])}", has_tokens=has_tokens)
    assert not allows(grammar, "", has_tokens=has_tokens)


AWKWARD = {
    "tags": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    "path": {"type": "string", "format": "path"},
    "price": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]},
    "counts": {
        "type": "object",
        "propertyNames": {"$ref": "#/$defs/Color"},
        "additionalProperties": {"type": "integer"},
    },
    "more": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": True},
    "id": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "either": {"oneOf": [{"type": "integer"}, {"$ref": "#/$defs/Point"}]},
    "again": {"$ref": "#/properties/id"},
    "lost": {"$ref": "#/$defs/Nothing"},
    "never": {"not": {}},
}
"""Arguments as pydantic, zod and others declare them, of which much cannot be enforced."""


@table("has_tokens", [False, True])
@table("name", NAMES)
def test_a_tool_of_which_not_all_can_be_enforced_can_be_called(name: str, has_tokens: bool) -> None:
    awkward = tool("save", **AWKWARD)
    point = {"type": "object", "properties": {"x": {"type": "integer"}}}
    parameters = awkward["function"]["parameters"]
    parameters["$defs"] = {"Color": {"enum": ["red", "blue"]}, "Point": point}
    parameters["required"] = ["path"]
    layout = layout_of(name, has_tokens)
    notation = in_tokens(NOTATIONS[name]) if has_tokens else NOTATIONS[name]
    grammar = layout.constraint(asked(tools=(*TOOLS, awkward)), "")
    values = {"path": "/a", "price": 1.5, "id": 5, "either": 7}
    assert allows(grammar, notation.write([("save", values)]), has_tokens=has_tokens)
    assert allows(grammar, notation.write([OSLO]), has_tokens=has_tokens), "the other tools are called as ever"
    for wrong in ({"id": 5}, {"path": "/a", "id": "x"}, {"path": "/a", "never": 1}):
        assert not allows(grammar, notation.write([("save", wrong)]), has_tokens=has_tokens), wrong


@table("name", NAMES)
def test_a_named_tool_is_called_once_and_no_other(name: str) -> None:
    notation = NOTATIONS[name]
    grammar = output_format(name).constraint(asked("named", called_tool="weather"), "")
    assert allows(grammar, notation.write([OSLO]))
    assert not allows(grammar, notation.write([SUM]))
    if not notation.is_single:
        assert not allows(grammar, notation.write([OSLO, OSLO]))


@table("has_tokens", [False, True])
@table("name", [name for name in NAMES if name != harmony.NAME and TOOL_FORMATS[name].marked])
def test_a_free_choice_allows_text_and_well_formed_calls(name: str, has_tokens: bool) -> None:
    notation, layout = NOTATIONS[name], layout_of(name, has_tokens)
    grammar = layout.constraint(asked("auto"), "")
    assert isinstance(layout, OutputFormat)
    assert layout.opens is not None
    mark, call = layout.opens.text, notation.write([OSLO])
    call = mark + call.partition("[")[2].join(("[", "")) if not call.startswith(mark) else call
    for text in ("", "Hello [there] {x}.", call, f"I look.\n{call}"):
        assert allows(grammar, text, has_tokens=has_tokens), text
    for text in (f"{mark}anything", call.replace("weather", "wether"), call.replace("3", "x")):
        assert not allows(grammar, text, has_tokens=has_tokens), text


def test_an_answer_may_stand_between_marks_that_are_control_tokens() -> None:
    layout = choose_output_format(None, Named(), "cohere", "cohere")
    prompt = "<|START_THINKING|><|END_THINKING|>"
    said, call = "<|START_RESPONSE|>Hi.<|END_RESPONSE|>", NOTATIONS["cohere"].write([OSLO])
    free = layout.constraint(asked("auto"), prompt)
    own = Grammar("choice", '["yes", "no"]')
    beside_calls = layout.constraint(
        msgspec.structs.replace(asked("auto"), sampling=SamplingParams(grammar=own)), prompt
    )
    alone = msgspec.structs.replace(request(None, parse_tool_calls=False), sampling=SamplingParams(grammar=own))
    for grammar, text, is_allowed in (
        (free, said, True),
        (free, "Hi.", True),
        (free, call, True),
        (free, f"{said}{said}", False),
        (beside_calls, said.replace("Hi.", "yes"), True),
        (beside_calls, "no", True),
        (beside_calls, said, False),
        (beside_calls, call, True),
        (layout.constraint(alone, "<|START_THINKING|>"), f"Hm.<|END_THINKING|>{said.replace('Hi.', 'yes')}", True),
        (layout.constraint(alone, "<|START_THINKING|>"), f"Hm.<|END_THINKING|>{said}", False),
    ):
        assert allows(grammar, text, has_tokens=True) is is_allowed, text


def test_a_harmony_answer_thinks_and_then_says_or_calls() -> None:
    for has_tokens in (False, True):
        grammar = layout_of(harmony.NAME, has_tokens).constraint(asked("auto"), "<|start|>assistant")
        call = NOTATIONS[harmony.NAME].write([OSLO])
        thought = "<|channel|>analysis<|message|>Hm, weather?<|end|><|start|>assistant"
        preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
        final = "<|channel|>final<|message|>Fine."
        role = call.replace(
            "<|channel|>commentary to=functions.weather ", " to=functions.weather<|channel|>commentary "
        )
        for text in (final, thought + final, thought + preamble + call, call, role, thought + role):
            assert allows(grammar, text, has_tokens=has_tokens), text
        for text in (
            "Fine.",
            thought,
            thought + call.replace("3", "x"),
            call.replace("weather", "wether"),
            call + final,
        ):
            assert not allows(grammar, text, has_tokens=has_tokens), text


def test_a_clients_constraint_holds_for_the_final_message_of_harmony() -> None:
    own = Grammar("json_schema", '{"type": "integer"}')
    layout = layout_of(harmony.NAME, has_tokens=True)
    wanted = msgspec.structs.replace(request(None, parse_tool_calls=False), sampling=SamplingParams(grammar=own))
    grammar = layout.constraint(wanted, "<|start|>assistant")
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    assert allows(grammar, f"{thought}<|channel|>final<|message|>7", has_tokens=True)
    assert not allows(grammar, f"{thought}<|channel|>final<|message|>seven", has_tokens=True)
    assert not allows(grammar, "7", has_tokens=True)
    with_tools = layout.constraint(
        msgspec.structs.replace(asked("auto"), sampling=SamplingParams(grammar=own)), "<|start|>assistant"
    )
    assert allows(with_tools, NOTATIONS[harmony.NAME].write([OSLO]), has_tokens=True)
    assert allows(with_tools, "<|channel|>final<|message|>7", has_tokens=True)
    # The answer goes on in a message that the prompt has begun.
    assert layout.constraint(wanted, "<|start|>assistant<|channel|>final<|message|>") == own


def walk(grammar: Grammar, seed: int, *, has_tokens: bool) -> str | None:
    """A text that the grammar lets through, byte by byte at random; None if it has no end soon."""
    masker = (TOKEN_MARKS if has_tokens else TEXT_MARKS).compile(grammar)
    size = EOS + 1 + (len(IDS) if has_tokens else 0)
    names, row, drawn = {number: mark for mark, number in IDS.items()}, np.zeros((size + 31) // 32, np.uint32), b""
    choose = random.Random(seed)
    for _ in range(600):
        row[:] = 0
        masker.fill_mask(row)
        allowed = [token for token in range(size) if row[token // 32] >> (token % 32) & 1]
        # Control characters and broken UTF-8 are allowed in bare text, but say nothing here.
        plain = [token for token in allowed if token >= EOS or 32 <= token < 127 or token == 10]
        token = choose.choice(plain or allowed)
        if token == EOS:
            return drawn.decode()
        assert masker.advance(token)
        drawn += names[token].encode() if token > EOS else bytes([token])
    return None


MOST_READ = 12 if everything() else 3


@table("has_tokens", [False, True])
@table("name", NAMES)
def test_whatever_the_grammar_lets_through_is_read_back_as_calls_that_follow_the_schema(
    name: str, has_tokens: bool
) -> None:
    layout, wanted = layout_of(name, has_tokens), asked()
    grammar = layout.constraint(wanted, "")
    assert grammar is not None
    num_read = 0
    for seed in range(12):
        text = walk(grammar, seed, has_tokens=has_tokens) if num_read < MOST_READ else None
        if text is None:
            continue
        num_read += 1
        for covered in (True, False):
            made = layout.parser(
                msgspec.structs.replace(wanted, sampling=SamplingParams(grammar=grammar if covered else None)), ""
            )
            assert made is not None
            output = parsed(made, [*text, ""])
            assert output.content == ""
            for called, arguments in calls_of(output):
                if called == "weather":
                    assert len(arguments["city"]) <= 4
                    assert 0 <= arguments["days"] <= 9
                    assert arguments.keys() == {"city", "days"}
                else:
                    assert called == "add"
                    assert arguments["a"] in ("x", "y z")
                    assert isinstance(arguments.get("b", True), bool)
                    assert set(arguments.get("c", [])) <= {1, 2}
            assert output.calls
    assert num_read >= 3


# --- arguments that are bare text -------------------------------------------------------------------------------------

CODER = "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"


@table(
    ("schema", "written", "value"),
    [
        ({"type": "string"}, "7", "7"),
        ({"type": "string"}, " a\n\n b ", " a\n\n b "),
        ({"type": "string"}, "null", "null"),
        ({"type": "integer"}, "7", 7),
        ({"type": "number"}, "7", 7),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "True", True),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "7", "7"),
        ({"type": "object"}, '{"x": [1]}', {"x": [1]}),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "7", 7),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "seven", "seven"),
        ({"$ref": "#/$defs/S"}, "7", "7"),
        ({"enum": ["7", "8"]}, "7", "7"),
        ({}, "7", 7),
        ({}, "seven", "seven"),
        (True, "[1]", [1]),
    ],
)
def test_bare_text_has_the_type_that_the_schema_says(schema: Any, written: str, value: Any) -> None:
    own = tool("f", a=schema)
    own["function"]["parameters"]["$defs"] = {"S": {"type": "string"}}
    wanted = asked(tools=[own])
    layout = output_format("qwen3_coder")
    text = CODER.format(written)
    for covered in (False, True):
        made = layout.parser(asked(tools=[own], covered=covered), "")
        assert made is not None
        assert calls_of(parsed(made, [*text, ""])) == [("f", {"a": value})]
    if written != "True":  # read, but not what a grammar writes
        assert allows(layout.constraint(wanted, ""), text)


@table(
    ("schema", "written", "is_allowed"),
    [
        ({"type": "string", "minLength": 2}, "a", False),
        ({"type": "string", "minLength": 2}, "a\n", True),
        ({"type": "string", "maxLength": 2}, "abc", False),
        ({"type": "string", "pattern": "^a+/b$"}, "aa/b", True),
        ({"type": "string", "pattern": "^a+/b$"}, "aa/bc", False),
        ({"type": "string", "pattern": "b"}, "abc", True),
        ({"type": "string", "pattern": "b"}, "ac", False),
        ({"type": "string", "const": "x"}, "x", True),
        ({"type": "string", "const": "x"}, "y", False),
        ({"type": "string"}, "a\n</parameter>\n<parameter=b>\nc", False),
        ({"type": "integer", "minimum": 5}, "4", False),
        ({"type": "object", "properties": {"x": {"$ref": "#/$defs/I"}}}, '{"x": 1}', True),
        ({"type": "object", "properties": {"x": {"$ref": "#/$defs/I"}}}, '{"x": "1"}', False),
        ({"type": "string", "format": "date"}, "anything", True),
    ],
)
def test_bare_text_follows_what_a_schema_says_of_strings(schema: Any, written: str, is_allowed: bool) -> None:
    own = tool("f", a=schema)
    own["function"]["parameters"]["$defs"] = {"I": {"type": "integer"}}
    grammar = output_format("qwen3_coder").constraint(asked(tools=[own]), "")
    assert allows(grammar, CODER.format(written)) is is_allowed


def test_a_strict_tool_with_what_bare_text_cannot_be_held_to_is_refused_by_name() -> None:
    own = tool("f", a={"type": "string", "format": "date"})
    own["function"]["strict"] = True
    with pytest.raises(
        InvalidParameter, match="format of argument a of strict function f cannot be enforced"
    ) as caught:
        output_format("qwen3_coder").constraint(asked(tools=[own]), "")
    assert caught.value.param == "tools"
    assert output_format("qwen3_coder").constraint(asked("auto", tools=[own]), "") is None


@table("name", ["qwen3_coder", "glm45", "pythonic"])
def test_arguments_that_a_schema_leaves_open_may_be_named_by_the_model(name: str) -> None:
    own = tool("f")
    own["function"]["parameters"] = {"type": "object", "additionalProperties": True}
    text = NOTATIONS[name].write([("f", {"x": "one", "y": 2})])
    grammar = output_format(name).constraint(asked(tools=[own]), "")
    assert allows(grammar, text)
    made = output_format(name).parser(asked(tools=[own]), "")
    assert made is not None
    assert calls_of(parsed(made, [text])) == [("f", {"x": "one", "y": 2})]


def test_tools_without_arguments_are_called_without() -> None:
    own = {"type": "function", "function": {"name": "f"}}
    for name in NAMES:
        text = NOTATIONS[name].write([("f", {})])
        assert allows(output_format(name).constraint(asked(tools=[own]), ""), text), name
        made = output_format(name).parser(asked(tools=[own]), "")
        assert made is not None
        assert calls_of(parsed(made, [text])) == [("f", {})]
        assert json.loads(parsed(output_format(name).parser(asked(tools=[own]), "") or made, [text]).calls[0][2]) == {}


@table("has_tokens", [False, True])
def test_nested_tags_are_written_where_a_schema_is_plain_and_json_elsewhere(has_tokens: bool) -> None:
    string, count = {"type": "string"}, {"type": "integer"}
    place = {"type": "object", "properties": {"zip": string, "days": count}, "required": ["zip"]}
    offered = tool("f", tags={"type": "array", "items": string}, place=place, many={"type": "array", "maxItems": 1})
    grammar = layout_of("minimax_m3", has_tokens).constraint(asked(tools=(offered,)), "")

    def is_allowed(tags: str, place: str, many: str) -> bool:
        arguments = f"#<tags>{tags}#</tags>#<place>{place}#</place>#<many>{many}#</many>"
        text = f'#<tool_call>\n#<invoke name="f">{arguments}#</invoke>\n#</tool_call>'
        return allows(grammar, text.replace("#", NS), has_tokens=has_tokens)

    items = "#<item>a<b#</item>#<item>c#</item>"
    assert is_allowed(items, "#<zip>01#</zip>#<days>2#</days>", "[1]")
    assert is_allowed("", "#<zip>01#</zip>", "[]")
    assert not is_allowed(items, "#<days>2#</days>", "[]")
    assert not is_allowed(items, "#<zip>01#</zip>#<days>two#</days>", "[]")
    assert not is_allowed(items, '{"zip": "01"}', "[]")
    assert not is_allowed(items, "#<zip>01#</zip>", "[1, 2]")
