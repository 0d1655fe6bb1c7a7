"""Formats of calls that are JSON objects. Sources: the chat templates of the models named at each."""

from __future__ import annotations

import json
import secrets
import string

from dragoman.server.generation.output_parsers.call_parser import CallSyntax
from dragoman.server.generation.output_parsers.json_call import json_calls
from dragoman.server.generation.output_parsers.text_values import TextRule
from dragoman.server.generation.output_parsers.tool_format import (
    Function,
    Marks,
    ToolFormat,
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


def mistral_id() -> str:
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
    new_id=mistral_id,
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
