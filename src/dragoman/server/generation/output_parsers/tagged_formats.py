"""Formats of calls with bare text between tags. Sources: the chat templates of the models named at each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.errors import InvalidParameter
from dragoman.server.generation.output_parsers.call_parser import CallSyntax
from dragoman.server.generation.output_parsers.nested_values import (
    NAMESPACE,
    end_of,
    nested_rule,
    nested_value,
    opening_of,
)
from dragoman.server.generation.output_parsers.tagged_call import TagSyntax, tagged_calls
from dragoman.server.generation.output_parsers.text_values import End, TextRule, argument_schemas, text_rule, unenforced
from dragoman.server.generation.output_parsers.tool_format import (
    COMBINING,
    Function,
    Marks,
    ToolFormat,
    WriteCall,
    arguments_schema,
    calls,
    literal,
)

_FREE_KEY = r"/[^<>=\"\s]{1,64}/"  # of an argument that the schema does not name

_CODER_TAGS = TagSyntax("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", is_padded=True)
_SEED_TAGS = TagSyntax("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", is_padded=False)
_MINIMAX_TAGS = TagSyntax(
    '<invoke name="', '">', '<parameter name="', '">', "", "</parameter>", "</invoke>", is_padded=False
)
_MINIMAX3_TAGS = TagSyntax(
    f'{NAMESPACE}<invoke name="',
    '">',
    f"{NAMESPACE}<",
    ">",
    "",
    f"{NAMESPACE}</{{key}}>",
    f"{NAMESPACE}</invoke>",
    is_padded=False,
    read=nested_value,
)
_GLM_TAGS = TagSyntax(
    head="",
    name_close="",
    key_begin="<arg_key>",
    key_end="</arg_key>",
    value_begin="<arg_value>",
    value_end="</arg_value>",
    end="</tool_call>",
    is_padded=False,
    name_ends=("\n", "<arg_key>", "</tool_call>"),
)


def _writer(tags: TagSyntax) -> WriteCall:
    """A call with each argument on a line of its own, in the order of the schema."""

    def call(rule: str, function: Function, marks: Marks) -> TextRule:
        schema = arguments_schema(function)
        end = End(marks[tags.value_end], "\n" if tags.is_padded else "")
        written, rules = [], []
        for number, (key, value_schema) in enumerate(argument_schemas(schema).items()):
            if function.get("strict"):
                check_enforced(function, key, value_schema, schema)
            value = text_rule(f"{rule}_{number}", value_schema, schema, end)
            optional = "" if key in (schema.get("required") or ()) else "?"
            written.append(f'({_opening(tags, literal(key), marks)} {value.lark} "\\n"){optional}')
            rules.append(value.rules)
        if other := schema.get("additionalProperties", not written and COMBINING & schema.keys()):
            value = text_rule(f"{rule}_other", other, schema, end)
            written.append(f'({_opening(tags, _FREE_KEY, marks)} {value.lark} "\\n")*')
            rules.append(value.rules)
        head = literal(f"{tags.head}{function['name']}{tags.name_close}\n")
        return TextRule(f"{head} {' '.join(written)} {marks.lark(tags.end)}", "".join(rules))

    return call


def _minimax3_call(rule: str, function: Function, marks: Marks) -> TextRule:
    """Arguments that the schema does not name are left out: no grammar repeats a name."""
    schema = arguments_schema(function)
    written, rules = [], []
    for number, (key, value_schema) in enumerate(argument_schemas(schema).items()):
        if function.get("strict"):
            check_enforced(function, key, value_schema, schema)
        value = nested_rule(f"{rule}_{number}", value_schema, schema, end_of(key, marks), marks)
        optional = "" if key in (schema.get("required") or ()) else "?"
        written.append(f"({opening_of(key, marks)} {value.lark}){optional}")
        rules.append(value.rules)
    mark, head = marks.lark(NAMESPACE), literal(f'<invoke name="{function["name"]}">')
    return TextRule(f'{mark} {head} {" ".join(written)} {mark} "</invoke>"', "".join(rules))


def _opening(tags: TagSyntax, key: str, marks: Marks) -> str:
    """The text before a value, as Lark; so is `key`."""
    value_begin = f'"\\n" {marks.lark(tags.value_begin)}' if tags.value_begin else ""
    padding = '"\\n"' if tags.is_padded else ""
    return f"{marks.lark(tags.key_begin)} {key} {marks.lark(tags.key_end)} {value_begin} {padding}"


def check_enforced(function: Function, key: str, schema: Any, root: Mapping[str, Any]) -> None:
    """Raises: InvalidParameter if the function is strict and the schema demands of a text what no grammar can enforce."""
    beyond = unenforced(schema, root)
    if beyond:
        raise InvalidParameter(
            f"{beyond} of argument {key} of strict function {function['name']} cannot be enforced in the model's tool "
            "call format: strings may have enum, const, minLength, maxLength and pattern",
            param="tools",
        )


# Qwen/Qwen3-Coder-30B-A3B-Instruct, Qwen3.5, Nemotron 3, Step 3.5.
QWEN3_CODER = ToolFormat(
    "qwen3_coder",
    CallSyntax(
        opens=("<tool_call>",),
        starts=((_CODER_TAGS.head, tagged_calls(_CODER_TAGS)),),
        closes=("</tool_call>",),
        unopened=(_CODER_TAGS.head,),
    ),
    _writer(_CODER_TAGS),
    lambda marks, many: rf'"\n" call "\n" {marks.lark("</tool_call>")}',
    between_blocks="\n",
)
# ByteDance-Seed/Seed-OSS-36B-Instruct.
SEED_OSS = ToolFormat(
    "seed_oss",
    CallSyntax(
        opens=("<seed:tool_call>",),
        starts=((_SEED_TAGS.head, tagged_calls(_SEED_TAGS)),),
        closes=("</seed:tool_call>",),
        unopened=(_SEED_TAGS.head,),
    ),
    _writer(_SEED_TAGS),
    lambda marks, many: rf'"\n" call "\n" {marks.lark("</seed:tool_call>")}',
    between_blocks="\n",
)
# MiniMaxAI/MiniMax-M2 and M2.1.
MINIMAX_M2 = ToolFormat(
    "minimax_m2",
    CallSyntax(
        opens=("<minimax:tool_call>",),
        starts=((_MINIMAX_TAGS.head, tagged_calls(_MINIMAX_TAGS)),),
        closes=("</minimax:tool_call>",),
        repeats=True,
        unopened=(_MINIMAX_TAGS.head,),
    ),
    _writer(_MINIMAX_TAGS),
    lambda marks, many: rf'"\n" {calls(literal(chr(10)), many)} "\n" {marks.lark("</minimax:tool_call>")}',
)
# MiniMaxAI/MiniMax-M3: a mark before every tag, arguments named by their tags, objects and arrays of tags again.
MINIMAX_M3 = ToolFormat(
    "minimax_m3",
    CallSyntax(
        opens=(f"{NAMESPACE}<tool_call>",),
        starts=((_MINIMAX3_TAGS.head, tagged_calls(_MINIMAX3_TAGS)),),
        closes=(f"{NAMESPACE}</tool_call>",),
        repeats=True,
        unopened=(_MINIMAX3_TAGS.head,),
    ),
    _minimax3_call,
    lambda marks, many: rf'"<tool_call>\n" {calls(literal(chr(10)), many)} "\n" {marks.lark(NAMESPACE)} "</tool_call>"',
    told_by=NAMESPACE,
)
# zai-org/GLM-4.5 and 4.6.
GLM45 = ToolFormat(
    "glm45",
    CallSyntax(opens=("<tool_call>",), starts=(("", tagged_calls(_GLM_TAGS)),)),
    _writer(_GLM_TAGS),
    lambda marks, many: "call",
    between_blocks="\n",
    marks=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"),
)
