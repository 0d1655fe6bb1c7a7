"""Arguments as nested tags (MiniMax M3): their JSON values, and what a grammar allows. Runs on any thread."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dragoman.server.generation.output_parsers.text_values import (
    End,
    Schema,
    TextRule,
    dumped,
    kinds,
    resolved,
    text_rule,
    typed,
)
from dragoman.server.generation.output_parsers.tool_format import Marks, literal

NAMESPACE = "]<]minimax[>["  # before every tag
ITEM = "item"  # the tag around an entry of an array

_OPENING = re.compile(rf"\s*{re.escape(NAMESPACE)}<([^<>/\s]+)>")
_MAX_DEPTH = 32  # of tags within tags; what is deeper stays text
_MAX_RULES = 4  # levels that a grammar writes as tags; what is deeper is JSON
_OBJECT, _ARRAY = frozenset({"object"}), frozenset({"array"})
_PLAIN = frozenset(("type", "properties", "required", "additionalProperties", "items", "title", "description"))


def nested_value(text: str, schema: Any, root: Schema, depth: int = _MAX_DEPTH) -> str:
    """The JSON text of a value: of nested tags an object or an array, of anything else what its schema makes of it."""
    entries = _entries(text) if depth else None
    if not entries:
        return typed(text, schema, root)
    schema = _of_kinds(schema, root, _OBJECT | _ARRAY)
    allowed = kinds(schema, root)
    if all(key == ITEM for key, _ in entries) and (allowed is None or "array" in allowed):
        items = resolved(_of_kinds(schema, root, _ARRAY), root)
        inner = items.get("items") if isinstance(items, Mapping) else None
        return f"[{', '.join(nested_value(value, inner, root, depth - 1) for _, value in entries)}]"
    known = resolved(_of_kinds(schema, root, _OBJECT), root)
    members: dict[str, list[str]] = {}
    for key, value in entries:
        inner = _member_schema(known, key)
        members.setdefault(key, []).append(nested_value(value, inner, root, depth - 1))
    # A tag that is repeated is an array, as in other XML.
    values = {key: own[0] if len(own) == 1 else f"[{', '.join(own)}]" for key, own in members.items()}
    return "{" + ", ".join(f"{dumped(key)}: {value}" for key, value in values.items()) + "}"


def nested_rule(name: str, schema: Any, root: Schema, end: End, marks: Marks, depth: int = _MAX_RULES) -> TextRule:
    """As `text_rule`, with objects and arrays of a plain schema as tags; others are JSON, which reads back the same."""
    found = resolved(schema, root)
    allowed = kinds(found, root)
    if not depth or not isinstance(found, Mapping) or found.keys() - _PLAIN:
        return text_rule(name, schema, root, end)
    if allowed == _ARRAY and isinstance(found.get("items"), Mapping):
        inner = nested_rule(f"{name}_0", found["items"], root, end_of(ITEM, marks), marks, depth - 1)
        return TextRule(f"({opening_of(ITEM, marks)} {inner.lark})* {end.lark}", inner.rules)
    properties = found.get("properties")
    if allowed == _OBJECT and isinstance(properties, Mapping) and properties and not found.get("additionalProperties"):
        written, rules = [], []
        for number, (key, inner_schema) in enumerate(properties.items()):
            inner = nested_rule(f"{name}_{number}", inner_schema, root, end_of(key, marks), marks, depth - 1)
            optional = "" if key in (found.get("required") or ()) else "?"
            written.append(f"({opening_of(key, marks)} {inner.lark}){optional}")
            rules.append(inner.rules)
        return TextRule(f"{' '.join(written)} {end.lark}", "".join(rules))
    return text_rule(name, schema, root, end)


def opening_of(key: str, marks: Marks) -> str:
    return f"{marks.lark(NAMESPACE)} {literal(f'<{key}>')}"


def end_of(key: str, marks: Marks) -> End:
    return End(marks[NAMESPACE], after=f"</{key}>")


def _entries(text: str) -> list[tuple[str, str]] | None:
    """None if the text is anything else than tags."""
    entries: list[tuple[str, str]] = []
    position = 0
    while match := _OPENING.match(text, position):
        begin, close = f"{NAMESPACE}<{match[1]}>", f"{NAMESPACE}</{match[1]}>"
        end = text.find(close, match.end())
        while end >= 0 and text.count(begin, match.end(), end) > text.count(close, match.end(), end):
            end = text.find(close, end + len(close))
        if end < 0:
            return None
        entries.append((match[1], text[match.end() : end]))
        position = end + len(close)
    return entries if entries and not text[position:].strip() else None


def _of_kinds(schema: Any, root: Schema, wanted: frozenset[str]) -> Any:
    """The branch of a schema with alternatives that allows such values, or the schema itself."""
    found = resolved(schema, root)
    for key in ("anyOf", "oneOf", "allOf"):
        branches = found.get(key) if isinstance(found, Mapping) else None
        for branch in branches if isinstance(branches, list) else ():
            if (kinds(branch, root) or frozenset()) & wanted:
                return branch
    return found


def _member_schema(schema: Any, key: str) -> Any:
    if not isinstance(schema, Mapping):
        return None
    properties = schema.get("properties")
    named = properties.get(key) if isinstance(properties, Mapping) else None
    return schema.get("additionalProperties") if named is None else named
