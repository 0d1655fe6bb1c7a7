"""Formats of calls with a JSON object: all of the call, or its arguments after a name. Sources: the models' chat templates.

Readers run on the event loop, grammars are made on any thread.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Sequence
from functools import partial

from dragoman.server.generation.output_parsers.call_parser import CallSyntax
from dragoman.server.generation.output_parsers.call_reader import (
    CallStart,
    HeadedCallReader,
    JsonCallReader,
    MakeReader,
    ObjectScanner,
    Progress,
    arguments_text,
    json_calls,
)
from dragoman.server.generation.output_parsers.text_values import TextRule
from dragoman.server.generation.output_parsers.tool_format import (
    Function,
    Marks,
    ToolFormat,
    WriteBlock,
    WriteCall,
    arguments_rule,
    calls,
    closed,
    literal,
    written_list,
)

_ID_CHARACTERS = string.ascii_letters + string.digits
_BREAK = r"/\s{0,8}/"
_LIST_BREAK = rf'"," {_BREAK}'
_MESSAGE_END = "<|message_sep|>"
_GIGACHAT_ROLE, _GIGACHAT_MARK = "function call<|role_sep|>", "<|function_call|>"
_ID_LENGTH = 9  # Mistral's templates refuse ids of any other length
_NAME = r"\s*(?P<name>[\w.\-]+)\s*"

_KIMI_SECTION, _KIMI_SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_KIMI_CALL, _KIMI_ARGUMENTS, _KIMI_CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

_DEEPSEEK_SECTION, _DEEPSEEK_SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DEEPSEEK_CALL, _DEEPSEEK_SEPARATOR, _DEEPSEEK_CALL_END = (
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
)


class _HeadedJsonReader(HeadedCallReader):
    """A call whose arguments are a JSON object behind its header."""

    def __init__(self, start: CallStart, headers: Sequence[re.Pattern[str]]) -> None:
        super().__init__(start, headers)
        self._scanner = ObjectScanner()
        self._arguments: list[str] = []

    def _read_arguments(self) -> bool:
        for position, character in enumerate(self._waiting):
            if self._scanner.step(character) and self._scanner.depth == 0:
                self._end(position + 1)
                return False
            if self._scanner.is_wrong:
                return self._fail()
        self._pass_on(self._take(len(self._waiting)))
        return False

    def _end(self, size: int) -> None:
        self._pass_on(self._take(size))
        if not self._start.streams:
            written = arguments_text("".join(self._arguments))
            if written is None:
                self._fail()
                return
            self._write(written)
        self.progress = Progress.DONE

    def _pass_on(self, text: str) -> None:
        if self._start.streams:
            self._write(text)
        else:
            self._arguments.append(text)


def _headed_calls(*headers: str) -> MakeReader:
    return partial(_HeadedJsonReader, headers=[re.compile(header) for header in headers])


def _mistral_id() -> str:
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))


def _object(key: str = "arguments") -> WriteCall:
    """A call that is an object with a name and the arguments under this key, spaced as templates print JSON."""

    def call(rule: str, function: Function, marks: Marks) -> TextRule:
        head = literal(f'{{"name": {json.dumps(function["name"])}, "{key}": ')
        return TextRule(f'{head} {arguments_rule(function)} "}}"', "")

    return call


def _cohere_call(rule: str, function: Function, marks: Marks) -> TextRule:
    head = literal(f'", "tool_name": {json.dumps(function["name"])}, "parameters": ')
    return TextRule(f'"{{\\"tool_call_id\\": \\"" /[0-9]{{1,3}}/ {head} {arguments_rule(function)} "}}"', "")


def _separated(marks: Marks, many: bool) -> str:
    return calls('"; "', many)


def _mistral_call(rule: str, function: Function, marks: Marks) -> TextRule:
    return TextRule(f"{literal(function['name'])} {marks.lark('[ARGS]')} {arguments_rule(function)}", "")


def _kimi_call(rule: str, function: Function, marks: Marks) -> TextRule:
    name = literal("functions." + function["name"] + ":")
    head = f"{marks.lark(_KIMI_CALL)} {name} /[0-9]{{1,3}}/"
    tail = f"{marks.lark(_KIMI_ARGUMENTS)} {arguments_rule(function)} {marks.lark(_KIMI_CALL_END)}"
    return TextRule(f"{head} {tail}", "")


def _deepseek_v3_call(rule: str, function: Function, marks: Marks) -> TextRule:
    fenced = literal(function["name"] + "\n```json\n")
    head = f'{marks.lark(_DEEPSEEK_CALL)} "function" {marks.lark(_DEEPSEEK_SEPARATOR)} {fenced}'
    return TextRule(rf'{head} {arguments_rule(function)} "\n```" {marks.lark(_DEEPSEEK_CALL_END)}', "")


def _deepseek_v31_call(rule: str, function: Function, marks: Marks) -> TextRule:
    head = f"{marks.lark(_DEEPSEEK_CALL)} {literal(function['name'])} {marks.lark(_DEEPSEEK_SEPARATOR)}"
    return TextRule(f"{head} {arguments_rule(function)} {marks.lark(_DEEPSEEK_CALL_END)}", "")


def _functionary_call(rule: str, function: Function, marks: Marks) -> TextRule:
    return TextRule(f"{literal(function['name'] + '>')} {arguments_rule(function)} {marks.lark('</function>')}", "")


def _section(end: str, separator: str = "") -> WriteBlock:
    return lambda marks, many: f"{calls(separator, many)} {marks.lark(end)}"


def _deepseek_syntax() -> CallSyntax:
    """Both notations: V3 and R1 name a type before the tool and fence the object, V3.1 does neither."""
    old = rf"{re.escape(_DEEPSEEK_CALL)}\s*function\s*{re.escape(_DEEPSEEK_SEPARATOR)}"
    new = rf"{re.escape(_DEEPSEEK_CALL)}{_NAME}{re.escape(_DEEPSEEK_SEPARATOR)}\s*"
    return CallSyntax(
        opens=(_DEEPSEEK_SECTION,),
        starts=((_DEEPSEEK_CALL, _headed_calls(rf"{old}{_NAME}(?:```json\s*)?", new)),),
        call_closes=("```", _DEEPSEEK_CALL_END),
        closes=(_DEEPSEEK_SECTION_END,),
        repeats=True,
        unopened=(_DEEPSEEK_CALL,),
    )


# NousResearch/Hermes-2-Pro, Qwen/Qwen2.5-Instruct and Qwen3, Granite 4, EXAONE 4, SmolLM3, ERNIE 4.5, Falcon H1.
HERMES = ToolFormat(
    "hermes",
    CallSyntax(opens=("<tool_call>",), closes=("</tool_call>",)),
    _object(),
    lambda marks, many: rf'"\n" call "\n" {marks.lark("</tool_call>")}',
    between_blocks="\n",
)
# mistralai/Mistral-7B-Instruct-v0.3 to Mistral-Small-24B-Instruct-2501.
MISTRAL = ToolFormat(
    "mistral",
    CallSyntax(opens=("[TOOL_CALLS]",), is_list=True, separators=","),
    _object(),
    written_list(),
    new_id=_mistral_id,
)
# meta-llama/Llama-3.1-8B-Instruct. Models may leave out the mark, so it decides nothing.
LLAMA3 = ToolFormat(
    "llama3_json",
    CallSyntax(opens=("<|python_tag|>",), separators=";,", is_bare=True),
    _object("parameters"),
    _separated,
    marked=False,
)
# For models whose format is unknown: a grammar makes them write calls that can be read.
PLAIN_JSON = ToolFormat("json", CallSyntax(separators=";,", is_bare=True), _object(), _separated, marked=False)
# ibm-granite/granite-3.0 to 3.3, Falcon 3, Falcon H1 Tiny. The mark of 3.1 and of Falcon is text.
GRANITE = ToolFormat(
    "granite",
    CallSyntax(opens=("<|tool_call|>", "<tool_call>"), closes=("</tool_call>",), is_list=True, separators=","),
    _object(),
    written_list(),
)
# microsoft/Phi-4-mini-instruct: `functools` where the prompt explains the tools in words, the token where it lists them.
PHI4 = ToolFormat(
    "phi4_mini_json",
    CallSyntax(opens=("functools", "<|tool_call|>"), closes=("<|/tool_call|>",), is_list=True, separators=","),
    _object(),
    written_list(blank=""),
)
# tencent/Hunyuan-A13B-Instruct, ServiceNow-AI/Apriel, AI21's Jamba 1.5 to 1.7; MiniMax-M1 leaves the array out.
HUNYUAN = ToolFormat(
    "hunyuan_a13b",
    CallSyntax(opens=("<tool_calls>",), closes=("</tool_calls>",), is_list=True, separators=",", repeats=True),
    _object(),
    closed(written_list(), "</tool_calls>"),
)
# nvidia/NVIDIA-Nemotron-Nano-9B-v2, Llama-3_3-Nemotron-Super-49B-v1_5.
NEMOTRON = ToolFormat(
    "nemotron_json",
    CallSyntax(opens=("<TOOLCALL>",), closes=("</TOOLCALL>",), is_list=True, separators=","),
    _object(),
    closed(written_list(blank=""), "</TOOLCALL>"),
)
# ai-sage/GigaChat3-10B-A1.8B: a call is the message of another role, after the mark that ends one. 3.1 has a mark for calls.
_GIGACHAT = CallSyntax(
    opens=(f"{_MESSAGE_END}\n\n{_GIGACHAT_ROLE}", _GIGACHAT_ROLE, _GIGACHAT_MARK),
    call_closes=(_MESSAGE_END,),
    unseen=_MESSAGE_END,
)
GIGACHAT3 = ToolFormat(
    "gigachat3",
    _GIGACHAT,
    _object(),
    lambda marks, many: rf'"\n\nfunction call" {marks.lark("<|role_sep|>")} "\n" call',
    marks=(_MESSAGE_END, "<|role_sep|>"),
    told_by=_MESSAGE_END,
)
GIGACHAT31 = ToolFormat(
    "gigachat31", _GIGACHAT, _object(), lambda marks, many: "call", marks=(_MESSAGE_END,), told_by=_GIGACHAT_MARK
)
# CohereForAI/c4ai-command-r7b-12-2024.
COHERE = ToolFormat(
    "cohere",
    CallSyntax(
        opens=("<|START_ACTION|>",),
        starts=(("{", json_calls("tool_name")),),
        closes=("<|END_ACTION|>",),
        is_list=True,
        separators=",",
    ),
    _cohere_call,
    closed(
        lambda marks, many: f'"[" {_BREAK} {calls(_LIST_BREAK, many)} {_BREAK} "]"',
        "<|END_ACTION|>",
    ),
)
# mistralai's tokenizers from v11: Mistral-Small-3.2, Devstral, Magistral, Ministral 3. An id may stand behind the name.
MISTRAL_ARGS = ToolFormat(
    "mistral_args",
    CallSyntax(
        opens=("[TOOL_CALLS]",),
        starts=(
            ("{", JsonCallReader),
            ("", _headed_calls(rf"{_NAME}(?:\[CALL_ID\]\s*(?P<id>[\w\-]+)\s*)?\[ARGS\]\s*", rf"{_NAME}")),
        ),
        is_list=True,
        separators=",",
    ),
    _mistral_call,
    lambda marks, many: "call",
    between_blocks="",
    marks=("[ARGS]", "[CALL_ID]"),
    new_id=_mistral_id,
)
# moonshotai/Kimi-K2-Instruct. The model names its calls itself, and its template wants that form back.
KIMI_K2 = ToolFormat(
    "kimi_k2",
    CallSyntax(
        opens=(_KIMI_SECTION,),
        starts=(
            (
                _KIMI_CALL,
                _headed_calls(
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
    _section(_DEEPSEEK_SECTION_END, r'"\n"'),
    marks=(_DEEPSEEK_CALL, _DEEPSEEK_SEPARATOR),
)
# deepseek-ai/DeepSeek-V3.1.
DEEPSEEK_V31 = ToolFormat(
    "deepseek_v31",
    _deepseek_syntax(),
    _deepseek_v31_call,
    _section(_DEEPSEEK_SECTION_END),
    marks=(_DEEPSEEK_CALL, _DEEPSEEK_SEPARATOR),
)
# meetkai/functionary-medium-v3.1, and others whose prompts describe functions as Meta's do custom tools of Llama 3.1.
FUNCTIONARY = ToolFormat(
    "functionary_v31",
    CallSyntax(opens=("<function=",), starts=(("", _headed_calls(rf"{_NAME}>\s*")),), call_closes=("</function>",)),
    _functionary_call,
    lambda marks, many: "call",
    between_blocks="",
)
