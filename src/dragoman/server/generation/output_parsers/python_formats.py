"""Formats of calls as in Python, with their reader. Sources: the prompts of Meta's models, the others' chat templates.

Literals are parsed; nothing is run. Readers run on the event loop, grammars are made on any thread.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping
from typing import Any

from dragoman.server.generation.output_parsers.call_parser import CallSyntax
from dragoman.server.generation.output_parsers.call_reader import ArgumentsReader, CallStart, json_value
from dragoman.server.generation.output_parsers.text_values import TextRule, argument_schemas, dumped, json_rule, kinds
from dragoman.server.generation.output_parsers.tool_format import (
    COMBINING,
    Function,
    Marks,
    ToolFormat,
    arguments_schema,
    calls,
    closed,
    literal,
    written_list,
)

_HEADER = re.compile(r"\s*(?P<name>[\w.\-]+)\s*")
_KEYWORD = re.compile(r"\s*([\w\-]+)\s*=(?!=)")
_WORDS = {"true": True, "false": False, "null": None}  # JSON's, which models mix in


class _PythonCallReader(ArgumentsReader):
    """One call, `name(key=value, ...)`. Values may be JSON as well."""

    def __init__(self, start: CallStart) -> None:
        super().__init__(start, _HEADER, ("([{", ")]}"), ("'", '"'))

    def _may_begin(self, text: str) -> bool:
        return super()._may_begin(text) and (not text or _HEADER.fullmatch(text) is not None)

    def _argument(self, text: str) -> str | None:
        match = _KEYWORD.match(text)
        value = None if match is None else _value_text(text[match.end() :])
        return None if match is None or value is None else f"{dumped(match[1])}: {value}"


def _value_text(text: str) -> str | None:
    """The JSON text of a literal of JSON or Python, None if it is neither."""
    written = text.strip()
    if written == "null" or json_value(written) is not None:
        return written
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd escapes
            value = _literal(ast.parse(written, mode="eval").body)
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _literal(node: ast.expr) -> Any:
    """Raises: ValueError for all but literals, and for values that JSON does not have."""
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None):
            return node.value
        case ast.Name(id=name) if name in _WORDS:
            return _WORDS[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_dict_key(key): _literal(value) for key, value in zip(keys, values, strict=True)}
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as number)):
            return -number if isinstance(sign, ast.USub) else number
    raise ValueError(ast.dump(node)[:80])


def _dict_key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("a key that is not a string")


_LINE_BREAK = literal("\n")
_STARTS = (("", _PythonCallReader),)


def _call(rule: str, function: Function, marks: Marks) -> TextRule:
    """Keywords in the order of the schema, those that are required first; values are JSON, but words are Python's."""
    schema = arguments_schema(function)
    arguments = {
        key: f"{literal(f'{key}=')} {_value(value, schema)}" for key, value in argument_schemas(schema).items()
    }
    required = [text for key, text in arguments.items() if key in (schema.get("required") or ())]
    optional = [text for key, text in arguments.items() if key not in (schema.get("required") or ())]
    other = schema.get("additionalProperties", not arguments and bool(COMBINING & schema.keys()))
    others = f"/[A-Za-z_][A-Za-z0-9_]{{0,63}}=/ {_value(other, schema)}" if other else ""
    # A tail is all that may follow once the optional arguments before it are written or left out.
    firsts = [f"{text} {rule}_tail_{number}" for number, text in enumerate(optional, 1)]
    firsts += [f"{others} {rule}_tail_{len(optional)}"] if others else []
    inside = ' ", " '.join(required) + f" {rule}_tail_0" if required else f"({' | '.join(firsts)})?" if firsts else ""
    tails = [f'{rule}_tail_{n}: (", " {text})? {rule}_tail_{n + 1}\n' for n, text in enumerate(optional)]
    tails.append(f"{rule}_tail_{len(optional)}: " + (f'(", " {others})*' if others else '""') + "\n")
    return TextRule(f'{literal(function["name"] + "(")} {inside} ")"', "".join(tails))


def _value(schema: Any, root: Mapping[str, Any]) -> str:
    words = {"boolean": '("True" | "False")', "null": '"None"'}
    allowed = kinds(schema, root)
    if allowed and len(allowed) == 1 and "enum" not in schema and "const" not in schema and (allowed & words.keys()):
        return words[next(iter(allowed))]
    return json_rule(schema, root)


# Llama 3.2, which writes no mark; Gemma 3 and ToolACE where their conversations ask for it.
PYTHONIC = ToolFormat(
    "pythonic",
    CallSyntax(
        opens=("<|python_tag|>",), starts=_STARTS, closes=("<|eom_id|>",), is_list=True, separators=",", is_bare=True
    ),
    _call,
    written_list('", "', blank=""),
    marked=False,
)
# meta-llama/Llama-4-Scout-17B-16E-Instruct, which writes the marks or not.
LLAMA4 = ToolFormat(
    "llama4_pythonic",
    CallSyntax(
        opens=("<|python_start|>",),
        starts=_STARTS,
        closes=("<|python_end|>",),
        is_list=True,
        separators=",",
        is_bare=True,
    ),
    _call,
    written_list('", "', blank=""),
    marked=False,
)
# LiquidAI/LFM2-1.2B.
LFM2 = ToolFormat(
    "lfm2",
    CallSyntax(
        opens=("<|tool_call_start|>",), starts=_STARTS, closes=("<|tool_call_end|>",), is_list=True, separators=","
    ),
    _call,
    closed(written_list('", "', blank=""), "<|tool_call_end|>"),
)
# allenai/Olmo-3-7B-Instruct: a call on each line.
OLMO3 = ToolFormat(
    "olmo3",
    CallSyntax(opens=("<function_calls>",), starts=_STARTS, closes=("</function_calls>",), repeats=True),
    _call,
    closed(lambda marks, many: rf"/\n?/ {calls(_LINE_BREAK, many)} /\n?/", "</function_calls>"),
)
