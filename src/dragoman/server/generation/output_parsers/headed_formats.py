"""Formats of calls with a name before a JSON object. Sources: the chat templates of the models named at each."""

from __future__ import annotations

import re

from dragoman.server.generation.output_parsers.call_parser import CallSyntax
from dragoman.server.generation.output_parsers.headed_call import headed_calls
from dragoman.server.generation.output_parsers.json_call import JsonCallReader
from dragoman.server.generation.output_parsers.json_formats import mistral_id
from dragoman.server.generation.output_parsers.text_values import TextRule
from dragoman.server.generation.output_parsers.tool_format import (
    Function,
    Marks,
    ToolFormat,
    WriteBlock,
    arguments_rule,
    calls,
    literal,
)

_NAME = r"\s*(?P<name>[\w.\-]+)\s*"

_KIMI_SECTION, _KIMI_SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_KIMI_CALL, _KIMI_ARGUMENTS, _KIMI_CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

_SECTION, _SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def _mistral_call(rule: str, function: Function, marks: Marks) -> TextRule:
    return TextRule(f"{literal(function['name'])} {marks.lark('[ARGS]')} {arguments_rule(function)}", "")


def _kimi_call(rule: str, function: Function, marks: Marks) -> TextRule:
    name = literal("functions." + function["name"] + ":")
    head = f"{marks.lark(_KIMI_CALL)} {name} /[0-9]{{1,3}}/"
    tail = f"{marks.lark(_KIMI_ARGUMENTS)} {arguments_rule(function)} {marks.lark(_KIMI_CALL_END)}"
    return TextRule(f"{head} {tail}", "")


def _deepseek_v3_call(rule: str, function: Function, marks: Marks) -> TextRule:
    fenced = literal(function["name"] + "\n```json\n")
    head = f'{marks.lark(_CALL)} "function" {marks.lark(_SEPARATOR)} {fenced}'
    return TextRule(rf'{head} {arguments_rule(function)} "\n```" {marks.lark(_CALL_END)}', "")


def _deepseek_v31_call(rule: str, function: Function, marks: Marks) -> TextRule:
    head = f"{marks.lark(_CALL)} {literal(function['name'])} {marks.lark(_SEPARATOR)}"
    return TextRule(f"{head} {arguments_rule(function)} {marks.lark(_CALL_END)}", "")


def _functionary_call(rule: str, function: Function, marks: Marks) -> TextRule:
    return TextRule(f"{literal(function['name'] + '>')} {arguments_rule(function)} {marks.lark('</function>')}", "")


def _section(end: str, separator: str = "") -> WriteBlock:
    return lambda marks, many: f"{calls(separator, many)} {marks.lark(end)}"


def _deepseek_syntax() -> CallSyntax:
    """Both notations: V3 and R1 name a type before the tool and fence the object, V3.1 does neither."""
    old = rf"{re.escape(_CALL)}\s*function\s*{re.escape(_SEPARATOR)}"
    new = rf"{re.escape(_CALL)}{_NAME}{re.escape(_SEPARATOR)}\s*"
    return CallSyntax(
        opens=(_SECTION,),
        starts=((_CALL, headed_calls(rf"{old}{_NAME}(?:```json\s*)?", new)),),
        call_closes=("```", _CALL_END),
        closes=(_SECTION_END,),
        repeats=True,
        unopened=(_CALL,),
    )


# mistralai's tokenizers from v11: Mistral-Small-3.2, Devstral, Magistral, Ministral 3. An id may stand behind the name.
MISTRAL_ARGS = ToolFormat(
    "mistral_args",
    CallSyntax(
        opens=("[TOOL_CALLS]",),
        starts=(
            ("{", JsonCallReader),
            ("", headed_calls(rf"{_NAME}(?:\[CALL_ID\]\s*(?P<id>[\w\-]+)\s*)?\[ARGS\]\s*", rf"{_NAME}")),
        ),
        is_list=True,
        separators=",",
    ),
    _mistral_call,
    lambda marks, many: "call",
    between_blocks="",
    marks=("[ARGS]", "[CALL_ID]"),
    new_id=mistral_id,
)
# moonshotai/Kimi-K2-Instruct. The model names its calls itself, and its template wants that form back.
KIMI_K2 = ToolFormat(
    "kimi_k2",
    CallSyntax(
        opens=(_KIMI_SECTION,),
        starts=(
            (
                _KIMI_CALL,
                headed_calls(
                    *(
                        rf"{re.escape(_KIMI_CALL)}\s*{tool}\s*{re.escape(_KIMI_ARGUMENTS)}\s*"
                        for tool in (
                            r"(?P<id>(?:functions\.)?(?P<name>[\w.\-]+):\d+)",
                            r"(?:functions\.)?(?P<name>[\w.\-]+)",
                        )
                    )
                ),
            ),
        ),
        call_closes=(_KIMI_CALL_END,),
        closes=(_KIMI_SECTION_END,),
        repeats=True,
        unopened=(_KIMI_CALL,),
    ),
    _kimi_call,
    _section(_KIMI_SECTION_END),
    marks=(_KIMI_CALL, _KIMI_ARGUMENTS),
)
# deepseek-ai/DeepSeek-V3, R1 and V3-0324.
DEEPSEEK_V3 = ToolFormat(
    "deepseek_v3",
    _deepseek_syntax(),
    _deepseek_v3_call,
    _section(_SECTION_END, r'"\n"'),
    marks=(_CALL, _SEPARATOR),
)
# deepseek-ai/DeepSeek-V3.1.
DEEPSEEK_V31 = ToolFormat(
    "deepseek_v31", _deepseek_syntax(), _deepseek_v31_call, _section(_SECTION_END), marks=(_CALL, _SEPARATOR)
)
# meetkai/functionary-medium-v3.1, and others whose prompts describe functions as Meta's do custom tools of Llama 3.1.
FUNCTIONARY = ToolFormat(
    "functionary_v31",
    CallSyntax(opens=("<function=",), starts=(("", headed_calls(rf"{_NAME}>\s*")),), call_closes=("</function>",)),
    _functionary_call,
    lambda marks, many: "call",
    between_blocks="",
)
