"""Gemma 4's format of calls: bare keys, and texts between marks of their own. Source: the chat templates of its models.

The reader runs on the event loop, grammars are made on any thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from dragoman.server.generation.output_parsers.call_parser import CallSyntax
from dragoman.server.generation.output_parsers.call_reader import ArgumentsReader, CallStart, json_value
from dragoman.server.generation.output_parsers.text_values import (
    ARRAY,
    OBJECT,
    STRING,
    End,
    Schema,
    TextRule,
    argument_schemas,
    dumped,
    is_plain,
    json_rule,
    kinds,
    resolved,
    text_rule,
)
from dragoman.server.generation.output_parsers.tool_format import (
    COMBINING,
    Function,
    Marks,
    ToolFormat,
    arguments_rule,
    arguments_schema,
    check_enforced,
    literal,
)

_HEAD = "call:"
_QUOTE = '<|"|>'  # before and behind a text

_HEADER = re.compile(rf"\s*{_HEAD}\s*(?P<name>[\w.\-]+)\s*")
_KEY = re.compile(r'[^\s:,{}\[\]<"]+')
_WORD = re.compile(r"[^,{}\[\]]*")
_WORDS = {"True": "true", "False": "false", "None": "null", "null": "null"}
_MAX_DEPTH = 32


class _QuotedCallReader(ArgumentsReader):
    """One call, `call:name{key:value,...}`. Texts may be strings of JSON as well."""

    def __init__(self, start: CallStart) -> None:
        super().__init__(start, _HEADER, ("{[", "}]"), (_QUOTE, '"'))

    def _argument(self, text: str) -> str | None:
        whole = text + "}"
        try:
            key, position = _read_key(whole, _after_space(whole, 0))
            value, position = _read_value(whole, position, _MAX_DEPTH)
            return f"{key}{value}" if whole[_after_space(whole, position) :] == "}" else None
        except (ValueError, IndexError):
            return None


def _read_value(text: str, position: int, depth: int) -> tuple[str, int]:
    """The JSON text of the value at a position, and where it ends. Raises: ValueError, IndexError if there is none."""
    position = _after_space(text, position)
    if text.startswith(_QUOTE, position):
        end = text.index(_QUOTE, position + len(_QUOTE))
        return dumped(text[position + len(_QUOTE) : end]), end + len(_QUOTE)
    if text[position] == '"':
        value, end = json.JSONDecoder(strict=False).raw_decode(text, position)
        return dumped(value), end
    if text[position] in "{[":
        if not depth:
            raise ValueError(f"more than {_MAX_DEPTH} brackets")
        return _read_entries(text, position, depth)
    match = _WORD.match(text, position)
    word = "" if match is None else match[0].strip()
    if match is None or not word:
        raise ValueError("no value")
    known = word if json_value(word) is not None else _WORDS.get(word)
    return dumped(word) if known is None else known, match.end()


def _read_entries(text: str, position: int, depth: int) -> tuple[str, int]:
    opening = text[position]
    closing, entries = "}" if opening == "{" else "]", []
    position = _after_space(text, position + 1)
    while text[position] != closing:
        key = ""
        if opening == "{":
            key, position = _read_key(text, position)
        value, position = _read_value(text, position, depth - 1)
        entries.append(f"{key}{value}")
        position = _after_space(text, position)
        if text[position] == ",":
            position = _after_space(text, position + 1)
        elif text[position] != closing:
            raise ValueError("neither a comma nor the end")
    return f"{opening}{', '.join(entries)}{closing}", position + 1


def _read_key(text: str, position: int) -> tuple[str, int]:
    if text.startswith((_QUOTE, '"'), position):
        key, position = _read_value(text, position, 1)
    else:
        match = _KEY.match(text, position)
        if match is None:
            raise ValueError("no key")
        key, position = dumped(match[0]), match.end()
    position = _after_space(text, position)
    if text[position] != ":":
        raise ValueError("no colon")
    return f"{key}: ", position + 1


def _after_space(text: str, position: int) -> int:
    while text[position].isspace():
        position += 1
    return position


_CALL, _CALL_END = "<|tool_call>", "<tool_call|>"
_MAX_RULES = 4  # levels that a grammar writes in this notation; what is deeper is JSON, which reads back the same
_COMPACT = {"item_separator": ",", "key_separator": ":"}  # as these models write


def _call(rule: str, function: Function, marks: Marks) -> TextRule:
    """A call with its arguments in the order of the schema; as JSON where the schema does not name them all."""
    schema, head = arguments_schema(function), _HEAD + function["name"]
    if COMBINING & schema.keys() or schema.get("additionalProperties"):
        return TextRule(f"{literal(head)} {arguments_rule(function)}", "")
    check_enforced(function, schema)
    inner = _members(rule, argument_schemas(schema), schema.get("required") or (), schema, marks, _MAX_RULES)
    return TextRule(f'{literal(head + "{")} {inner.lark} "}}"', inner.rules)


def _members(name: str, schemas: Mapping[str, Any], required: Any, root: Schema, marks: Marks, depth: int) -> TextRule:
    """Keys and values with commas between them. One rule for where nothing is written yet, one for behind a value."""
    rules, last = [], len(schemas)
    for number, (key, schema) in enumerate(schemas.items()):
        value = _value(f"{name}_{number}", schema, root, marks, depth)
        entry, after = f"{name}_{number}_entry", f"{name}_{number + 1}_more"
        may_miss = key not in required
        skips = [f" | {name}_{number + 1}_{kind}" if may_miss else "" for kind in ("first", "more")]
        rules.append(f"{value.rules}{entry}: {literal(f'{key}:')} {value.lark}\n")
        rules.append(f"{name}_{number}_first: {entry} {after}{skips[0]}\n")
        rules.append(f'{name}_{number}_more: "," {entry} {after}{skips[1]}\n')
    rules.append(f'{name}_{last}_first: ""\n{name}_{last}_more: ""\n')
    return TextRule(f"{name}_0_first", "".join(rules))


def _value(name: str, schema: Any, root: Schema, marks: Marks, depth: int) -> TextRule:
    found = resolved(schema, root)
    allowed = kinds(found, root)
    if allowed == STRING:
        text = text_rule(name, schema, root, End(marks[_QUOTE]))
        return TextRule(f"{marks.lark(_QUOTE)} {text.lark}", text.rules)
    if allowed is None and not found:
        text = text_rule(name, {"type": "string"}, root, End(marks[_QUOTE]))
        return TextRule(f"({marks.lark(_QUOTE)} {text.lark} | {json_rule(found, root, **_COMPACT)})", text.rules)
    if depth and isinstance(found, Mapping) and is_plain(found) and not found.get("additionalProperties"):
        properties, items = found.get("properties"), found.get("items")
        if allowed == ARRAY and isinstance(items, Mapping):
            inner = _value(f"{name}_0", items, root, marks, depth - 1)
            entry = f"{name}_item"
            return TextRule(f'"[" ({entry} ("," {entry})*)? "]"', f"{inner.rules}{entry}: {inner.lark}\n")
        if allowed == OBJECT and isinstance(properties, Mapping) and properties:
            inner = _members(name, properties, found.get("required") or (), root, marks, depth - 1)
            return TextRule(f'"{{" {inner.lark} "}}"', inner.rules)
    return TextRule(json_rule(found, root, **_COMPACT), "")


# google/gemma-4-E2B-it, E4B, 31B and 26B-A4B.
GEMMA4 = ToolFormat(
    "gemma4",
    CallSyntax(opens=(_CALL,), starts=((_HEAD, _QuotedCallReader),), closes=(_CALL_END,)),
    _call,
    lambda marks, many: f"call {marks.lark(_CALL_END)}",
    between_blocks="",
    marks=(_QUOTE,),
)
