"""What an answer may be when tools are offered: the real compiler is driven over single bytes and control tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from dragoman.grammar.compiler import GrammarCompiler
from dragoman.grammar.masker import Vocabulary
from dragoman.server.generation.output_parsers import OutputFormat
from dragoman.server.generation.output_parsers.base import Marker
from dragoman.server.generation.output_parsers.choose import REASONING_FORMATS, TOOL_FORMATS
from dragoman.server.generation.output_parsers.harmony import HarmonyOutput
from dragoman.types import ChatPrompt, GenerationRequest, Grammar, SamplingParams, TextPrompt, ToolChoice
from tests.server.output_texts import USER, output_format, request, tool
from tests.support.tables import table

EOS, CALLS_MARK, THINK_MARK, END_MARK = 256, 257, 258, 259
COMPILER = GrammarCompiler(
    Vocabulary(
        [*(bytes([value]) for value in range(256)), b"</s>", b"[TOOL_CALLS]", b"[THINK]", b"[/THINK]"],
        frozenset((EOS, CALLS_MARK, THINK_MARK, END_MARK)),
        EOS,
    )
)
OSLO = '{"name": "weather", "arguments": {"city": "Oslo"}}'
SUM = '{"name": "add", "arguments": {"a": 1, "b": -2}}'
OSLO_CALL = f"<tool_call>\n{OSLO}\n</tool_call>"
SUM_CALL = f"<tool_call>\n{SUM}\n</tool_call>"

MISTRAL = OutputFormat(
    TOOL_FORMATS["mistral"],
    replace(REASONING_FORMATS["magistral"], begin=Marker("[THINK]", THINK_MARK), end=Marker("[/THINK]", END_MARK)),
    Marker("[TOOL_CALLS]", CALLS_MARK),
)


def tokens(text: str) -> list[int]:
    """The text in bytes, marks of Mistral's as control tokens."""
    ids: list[int] = []
    for mark, token_id in (("[TOOL_CALLS]", CALLS_MARK), ("[THINK]", THINK_MARK), ("[/THINK]", END_MARK)):
        before, found, after = text.partition(mark)
        if found:
            return [*tokens(before), token_id, *tokens(after)]
    ids += text.encode()
    return ids


def allows(grammar: Grammar | None, text: str) -> bool:
    """Whether an answer may be exactly this text."""
    assert grammar is not None
    masker = COMPILER.compile(grammar)
    return all(masker.advance(token_id) for token_id in [*tokens(text), EOS])


def constraint(
    asked: GenerationRequest, layout: OutputFormat | HarmonyOutput | None = None, prompt_text: str = ""
) -> Grammar | None:
    """The grammar of the answer."""
    return (layout or output_format()).constraint(asked, prompt_text)


@table(
    ("text", "is_allowed"),
    [
        (OSLO_CALL, True),
        (f"{OSLO_CALL}\n{SUM_CALL}", True),
        ("", False),
        ("Hello", False),
        (f"Hello {OSLO_CALL}", False),
        (f"{OSLO_CALL} and more", False),
        (OSLO_CALL.replace("weather", "wether"), False),
        (OSLO_CALL.replace('"Oslo"', "7"), False),
        (OSLO_CALL.replace('{"city": "Oslo"}', "{}"), False),
        (OSLO_CALL.replace('"Oslo"', '"Oslo", "extra": 1'), False),
    ],
)
def test_a_required_call_names_a_tool_and_follows_its_schema(text: str, is_allowed: bool) -> None:
    assert allows(constraint(request("required")), text) is is_allowed


def test_a_named_tool_is_called_once_and_no_other() -> None:
    grammar = constraint(request("named", called_tool="add"))
    assert allows(grammar, SUM_CALL)
    assert not allows(grammar, OSLO_CALL)
    assert not allows(grammar, f"{SUM_CALL}\n{SUM_CALL}")


@table("choice", ["required", "auto"])
def test_without_parallel_calls_there_is_at_most_one(choice: ToolChoice) -> None:
    grammar = constraint(request(choice, parallel_tool_calls=False))
    assert allows(grammar, OSLO_CALL)
    assert not allows(grammar, f"{OSLO_CALL}\n{SUM_CALL}")


@table(
    ("text", "is_allowed"),
    [
        ("Hello <b>there</b>.", True),
        ("", True),
        (OSLO_CALL, True),
        (f"I look. {OSLO_CALL}\n{SUM_CALL} Done.", True),
        ("<tool_call>anything", False),
        (f"Hello {OSLO_CALL.replace('weather', 'wether')}", False),
    ],
)
def test_a_free_choice_allows_any_text_and_well_formed_calls(text: str, is_allowed: bool) -> None:
    assert allows(constraint(request("auto")), text) is is_allowed


def test_a_free_choice_is_unconstrained_where_calls_look_like_text() -> None:
    assert constraint(request("auto"), output_format("llama3_json")) is None


@table(
    ("tools", "text", "is_allowed"),
    [
        ("mistral", f"[TOOL_CALLS] [{OSLO}, {SUM}]", True),
        ("mistral", f"[TOOL_CALLS][{OSLO}]", True),
        ("mistral", "[TOOL_CALLS] []", False),
        ("llama3_json", OSLO.replace("arguments", "parameters"), True),
        ("llama3_json", OSLO, False),
        ("json", f"{OSLO}; {SUM}", True),
    ],
)
def test_every_format_has_its_own_form(tools: str, text: str, is_allowed: bool) -> None:
    layout = MISTRAL if tools == "mistral" else output_format(tools)
    assert allows(constraint(request("required"), layout), text) is is_allowed


def test_control_tokens_mark_calls_and_their_spelling_does_not() -> None:
    grammar = constraint(request("auto"), MISTRAL)
    assert allows(grammar, f"Wait.[TOOL_CALLS] [{OSLO}]")
    assert not allows(grammar, "Wait.[TOOL_CALLS] x")
    assert allows(grammar, "[TOOL" + "_CALLS ] x")
    assert allows(grammar, f"[THINK]I might [/THINK][TOOL_CALLS] [{OSLO}]")


@table(
    ("prompt_text", "text", "is_allowed"),
    [
        ("<think>\n", f"Hm <tool_call> hm.\n</think>\n\n{OSLO_CALL}", True),
        ("<think>\n", OSLO_CALL, False),
        ("<think>\n\n</think>\n\n", OSLO_CALL, True),
        ("<think>\n\n</think>\n\n", f"<think></think>{OSLO_CALL}", False),
        ("", f"<think>Hm.</think>\n{OSLO_CALL}", True),
        ("", OSLO_CALL, True),
    ],
)
def test_reasoning_may_come_before_required_calls_where_the_model_reasons(
    prompt_text: str, text: str, is_allowed: bool
) -> None:
    assert allows(constraint(request("required"), output_format(reasoning="think"), prompt_text), text) is is_allowed


@table(
    ("text", "is_allowed"),
    [
        (f"<think>A <tool_call> is free here.</think>\n{OSLO_CALL}", True),
        ("<think>A <tool_call> is free here.</think>Done.", True),
        (f"No. {OSLO_CALL}", True),
        ("Just <think> text.", True),
        ("<think>Hm.</think>A <tool_call>is not.", False),
    ],
)
def test_marks_that_the_reasoning_mentions_bind_to_nothing(text: str, is_allowed: bool) -> None:
    assert allows(constraint(request("auto"), output_format(reasoning="think")), text) is is_allowed


def test_a_clients_own_constraint_stands_beside_the_calls() -> None:
    asked = request("auto")
    own = Grammar("choice", '["yes", "no"]')
    grammar = constraint(msgspec.structs.replace(asked, sampling=SamplingParams(grammar=own)))
    assert [allows(grammar, text) for text in ("yes", OSLO_CALL, "maybe", f"yes{OSLO_CALL}")] == [
        True,
        True,
        False,
        False,
    ]
    without = msgspec.structs.replace(
        asked, sampling=SamplingParams(grammar=own), parse_tool_calls=False, tool_choice="none"
    )
    assert constraint(without) == own


def test_a_clients_constraint_begins_after_the_reasoning() -> None:
    own = Grammar("json_schema", '{"type": "integer"}')
    asked = msgspec.structs.replace(request(None, parse_tool_calls=False), sampling=SamplingParams(grammar=own))
    layout = output_format(reasoning="think")
    opened = constraint(asked, layout, "<think>\n")
    assert [allows(opened, text) for text in ("Hm </think>\n\n7", "7", "Hm </think>seven")] == [True, False, False]
    possible = constraint(asked, layout)
    assert [allows(possible, text) for text in ("<think>Hm </think>\n\n7", "7", "Hm")] == [True, True, False]
    raw = msgspec.structs.replace(asked, prompt=TextPrompt("<think>\n"))
    assert constraint(raw, layout, "<think>\n") == own


@table(
    ("parameters", "arguments", "is_allowed"),
    [
        (None, "{}", True),
        (None, '{"a": 1}', False),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"enum": [1, 2]}}}, '{"a": 2}', True),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"enum": [1, 2]}}}, '{"a": 3}', False),
        ({"properties": {}, "additionalProperties": True}, '{"x": [1, {"y": null}]}', True),
        ({"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "null"}]}}}, '{"a": null}', True),
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, '{"a": [1, 1]}', True),
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}}, '{"b": 1}', True),
    ],
)
def test_schemas_of_every_kind_hold_the_arguments(parameters: Any, arguments: str, is_allowed: bool) -> None:
    own = tool("f")
    own["function"] = {"name": "f"} if parameters is None else {"name": "f", "parameters": parameters}
    asked = request("required", prompt=ChatPrompt((USER,), (own,)))
    text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    assert allows(constraint(asked), text) is is_allowed


@table(
    ("prompt_text", "text", "is_allowed"),
    [
        ("", f"<think>Hm.\n{OSLO_CALL}", True),
        ("", f"<think>Hm.{OSLO_CALL}\n{SUM_CALL}\n", True),
        ("", f"<think>Hm.{OSLO_CALL}</think>Yes.", True),
        ("", "<think>I may <tool_call> it.</think>Yes.", True),
        ("", "<think>I may <tool_call> it.", False),
        ("", f"<think>Hm.{OSLO_CALL} and", False),
        ("", "<think>Hm.</think><tool_call>no</tool_call>", False),
        ("", "<tool_call>no</tool_call>", False),
        ("<think>\n", f"Hm.\n{OSLO_CALL}", True),
        ("<think>\n", f"Hm.\n{OSLO_CALL}</think>{SUM_CALL}", True),
        ("<think>\n", "Hm.", False),
        ("<think>\n\n</think>\n", "<tool_call>no</tool_call>", False),
    ],
)
def test_an_answer_may_end_with_a_call_within_its_reasoning(prompt_text: str, text: str, is_allowed: bool) -> None:
    grammar = constraint(request("auto"), output_format(reasoning="think"), prompt_text)
    assert allows(grammar, text) is is_allowed
