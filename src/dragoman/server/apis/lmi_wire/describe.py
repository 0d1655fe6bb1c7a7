"""The parameters and forms of LMI's and TGI's requests as schemas.

Does: turn the rows of the parameter table, which also parse, into schemas. Does not: describe whole bodies, or answers.
Called when the document is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dragoman.server.apis.lmi_wire.parameters.reader import bounds_under
from dragoman.server.apis.lmi_wire.parameters.table import Param
from dragoman.server.apis.lmi_wire.parameters.values import MAX_INTEGER, ValueType
from dragoman.server.apis.openai_wire.grammars import MAX_CHOICES
from dragoman.server.describe.json_schema import (
    BOOLEAN,
    INTEGER,
    LENIENT_BOOLEAN,
    NON_EMPTY_TEXT,
    NUMBER,
    TEXT,
    Schema,
    an_object,
    any_of,
    array,
    described,
    nullable,
    range_of,
)
from dragoman.server.parameters import Need
from dragoman.server.samplers import BREAKERS_SCHEMA
from dragoman.types import Limits

_TOKEN_ID: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_INTEGER}
_TEXTS = any_of(NON_EMPTY_TEXT, array(NON_EMPTY_TEXT))
_JSON_SCHEMA = any_of({"type": "object"}, BOOLEAN, TEXT)

TYPES: Mapping[ValueType, Schema] = {
    ValueType.BOOLEAN: LENIENT_BOOLEAN,
    ValueType.INTEGER: INTEGER,
    ValueType.FLOAT: NUMBER,
    ValueType.STRING: TEXT,
    ValueType.STRINGS: _TEXTS,
    ValueType.STOP: any_of(*_TEXTS["anyOf"], BOOLEAN),
    ValueType.TOKEN_IDS: any_of(array(_TOKEN_ID), _TOKEN_ID),
    ValueType.LOGIT_BIAS: {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]+$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
    ValueType.EARLY_STOPPING: any_of(*LENIENT_BOOLEAN["anyOf"], {"const": "never"}),
    ValueType.RESPONSE_FORMAT: an_object({"type": {"enum": ["text", "json_object", "json_schema", "json", "regex"]}}),
    ValueType.GUIDED_JSON: _JSON_SCHEMA,
    ValueType.REGEX: NON_EMPTY_TEXT,
    ValueType.CHOICE: array(NON_EMPTY_TEXT, minItems=1, maxItems=MAX_CHOICES),
    ValueType.LARK: NON_EMPTY_TEXT,
    ValueType.TGI_GRAMMAR: an_object({"type": {"enum": ["json", "json_object", "json_schema", "regex"]}, "value": {}}),
}
"""What each type of the table is in JSON, before coercion of strings."""

_COERCED = "Numbers may also come as strings. null means not given. Unknown parameters have no effect."


def parameters(rows: Mapping[str, Param], profile: str, version: str, limits: Limits) -> Schema:
    """The `parameters` object with these rows of the table."""
    properties = {name: _parameter(name, row, profile, version, limits) for name, row in rows.items()}
    return {"type": "object", "description": _COERCED, "properties": properties}


def _parameter(name: str, row: Param, profile: str, version: str, limits: Limits) -> Schema:
    schema: Schema = dict(TYPES[row.type])
    bounds = bounds_under(row, limits)
    if row.type is ValueType.INTEGER and bounds.high is None:
        bounds = replace(bounds, high=MAX_INTEGER)
    if row.type in (ValueType.INTEGER, ValueType.FLOAT):
        schema |= range_of(bounds)
    if row.field == "stop":
        schema = _limited(schema, limits.max_stop_strings)
    if row.field == "dry_sequence_breakers":
        schema = dict(BREAKERS_SCHEMA)
    effect = row.effect if row.needs is Need.NOTHING else f"{row.effect} ({row.needs})"
    default = row.default_for(profile, version)
    text = effect if name == row.name else f"the same as {row.name}"
    return described(nullable(schema), text, default if _is_accepted(row, default) else None)


def _limited(schema: Schema, most: int) -> Schema:
    """The schema of stop strings, at most `most` of them."""
    return any_of(*({**one, "maxItems": most} if one.get("type") == "array" else one for one in schema["anyOf"]))


def _is_accepted(row: Param, default: Any) -> bool:
    """Say whether the default can be sent as well: TGI's neutral `top_k` 0 may only be left out."""
    return default is not None and default != () and not row.bounds.problem(default)


def form() -> Schema:
    """A body as HTML forms send it."""
    return an_object(
        {"inputs": described(any_of(NON_EMPTY_TEXT, array(NON_EMPTY_TEXT)), "the prompt; repeated, several prompts")},
        {"parameters": described(TEXT, "`parameters` as JSON text"), "stream": described(TEXT, "true or false")},
    )
