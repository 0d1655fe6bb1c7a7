"""Gemma 4's format: bare keys, and texts between marks of their own. Source: the chat templates of its models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.server.generation.output_parsers.call_parser import CallSyntax
from dragoman.server.generation.output_parsers.quoted_call import HEAD, QUOTE, QuotedCallReader
from dragoman.server.generation.output_parsers.tagged_formats import check_enforced
from dragoman.server.generation.output_parsers.text_values import (
    STRING,
    End,
    Schema,
    TextRule,
    argument_schemas,
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
    literal,
)

_CALL, _CALL_END = "<|tool_call>", "<tool_call|>"
_MAX_RULES = 4  # levels that a grammar writes in this notation; what is deeper is JSON, which reads back the same
_COMPACT = {"item_separator": ",", "key_separator": ":"}  # as these models write
_OBJECT, _ARRAY = frozenset({"object"}), frozenset({"array"})
_PLAIN = frozenset(("type", "properties", "required", "additionalProperties", "items", "title", "description"))


def _call(rule: str, function: Function, marks: Marks) -> TextRule:
    """A call with its arguments in the order of the schema; as JSON where the schema does not name them all."""
    schema, head = arguments_schema(function), HEAD + function["name"]
    if COMBINING & schema.keys() or schema.get("additionalProperties"):
        return TextRule(f"{literal(head)} {arguments_rule(function)}", "")
    if function.get("strict"):
        for key, value_schema in argument_schemas(schema).items():
            check_enforced(function, key, value_schema, schema)
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
        text = text_rule(name, schema, root, End(marks[QUOTE]))
        return TextRule(f"{marks.lark(QUOTE)} {text.lark}", text.rules)
    if allowed is None and not found:
        text = text_rule(name, {"type": "string"}, root, End(marks[QUOTE]))
        return TextRule(f"({marks.lark(QUOTE)} {text.lark} | {json_rule(found, root, **_COMPACT)})", text.rules)
    if depth and isinstance(found, Mapping) and not found.keys() - _PLAIN and not found.get("additionalProperties"):
        properties, items = found.get("properties"), found.get("items")
        if allowed == _ARRAY and isinstance(items, Mapping):
            inner = _value(f"{name}_0", items, root, marks, depth - 1)
            entry = f"{name}_item"
            return TextRule(f'"[" ({entry} ("," {entry})*)? "]"', f"{inner.rules}{entry}: {inner.lark}\n")
        if allowed == _OBJECT and isinstance(properties, Mapping) and properties:
            inner = _members(name, properties, found.get("required") or (), root, marks, depth - 1)
            return TextRule(f'"{{" {inner.lark} "}}"', inner.rules)
    return TextRule(json_rule(found, root, **_COMPACT), "")


# google/gemma-4-E2B-it, E4B, 31B and 26B-A4B.
GEMMA4 = ToolFormat(
    "gemma4",
    CallSyntax(opens=(_CALL,), starts=((HEAD, QuotedCallReader),), closes=(_CALL_END,)),
    _call,
    lambda marks, many: f"call {marks.lark(_CALL_END)}",
    between_blocks="",
    marks=(QUOTE,),
)
