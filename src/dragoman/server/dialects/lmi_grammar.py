"""Reads the parameters that constrain the output text: `response_format`, `guided_*` and TGI's `grammar`.

Does: turn their JSON values into a neutral `Grammar`. Does not: compile grammars (the service does, and reports what
does not compile). Called by `lmi_values`, on the event loop. Every reader raises ValueError for a wrong shape.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.types import Grammar


def read_guided_json(value: Any) -> Grammar:
    """The grammar of a JSON schema, given as an object or as its text."""
    schema = _decoded(value) if isinstance(value, str) else value
    if not isinstance(schema, dict | bool):
        raise ValueError
    return Grammar("json_schema", msgspec.json.encode(schema).decode())


def read_regex(value: Any) -> Grammar:
    """The grammar of a regular expression."""
    return Grammar("regex", _text(value))


def read_lark(value: Any) -> Grammar:
    """The grammar of a Lark text."""
    return Grammar("lark", _text(value))


def read_choice(value: Any) -> Grammar:
    """The grammar that allows exactly one of the given texts."""
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise ValueError
    return Grammar("choice", msgspec.json.encode(value).decode())


def read_response_format(value: Any) -> Grammar | None:
    """The grammar of an OpenAI `response_format`, None for plain text.

    Also takes a schema beside `json_object`, as huggingface_hub writes it.
    """
    match value:
        case {"type": "text"}:
            return None
        case {"type": "json_schema", "json_schema": {"schema": schema}} | {"type": "json_schema", "schema": schema}:
            return read_guided_json(schema)
        case {"type": "json_object", "value": schema} | {"type": "json_object", "schema": schema} if schema:
            return read_guided_json(schema)
        case {"type": "json_object"}:
            return Grammar("json_object")
    raise ValueError


def read_tgi_grammar(value: Any) -> Grammar:
    """The grammar of TGI's `{"type", "value"}`. Source: TGI API, GrammarType."""
    match value:
        case {"type": "json_schema", "value": {"schema": schema}}:
            return read_guided_json(schema)
        case {"type": "json" | "json_object" | "json_schema", "value": schema}:
            return read_guided_json(schema)
        case {"type": "regex", "value": pattern}:
            return read_regex(pattern)
    raise ValueError


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise ValueError from error
