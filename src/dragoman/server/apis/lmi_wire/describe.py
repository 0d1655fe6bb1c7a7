"""The rows of the parameter table, and forms, as schemas. Called when the document is built."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.parameters import Need
from dragoman.server.api import ModelProfile
from dragoman.server.apis.lmi_wire.parameters.reader import LmiBody, profile_of
from dragoman.server.apis.lmi_wire.parameters.table import Param
from dragoman.server.apis.openai_wire.describe import field_schemas
from dragoman.server.describe.json_schema import (
    BOOLEAN,
    NON_EMPTY_TEXT,
    TEXT,
    Schema,
    an_object,
    any_of,
    array,
    described,
    struct_schemas,
)
from dragoman.types import Limits

_COERCED = (
    "Numbers may also come as strings, the only entry of a list of texts or ids without the list. null means not given. "
    "Unknown parameters have no effect."
)


def parameters(name: str, rows: Mapping[str, Param], profile: str, version: str, limits: Limits) -> dict[str, Schema]:
    """The `parameters` object with these rows of the table, as component `name`, and the components it refers to."""
    made = struct_schemas([LmiBody])
    fields = schemas_of_fields(rows, limits)
    properties = {}
    for spelling, row in rows.items():
        effect = row.effect if row.needs is Need.NOTHING else f"{row.effect} ({row.needs})"
        default = row.default_for(profile, version)
        text = effect if spelling == row.name else f"the same as {row.name}"
        is_legal = row.bounds is None or default is None or not row.bounds.problem(default)  # TGI's top_k 0 is left out
        field = any_of(*fields[row.field]["anyOf"], BOOLEAN) if row.skips_booleans else fields[row.field]
        properties[spelling] = described(field, text, default if is_legal else None)
    parts = {part: schema for part, schema in made.items() if part != LmiBody.__name__}
    return {**parts, name: {"type": "object", "description": _COERCED, "properties": properties}}


def schemas_of_fields(rows: Mapping[str, Param], limits: Limits) -> dict[str, Schema]:
    made = struct_schemas([LmiBody])[LmiBody.__name__]
    typed = {row.field: made["properties"][row.field] for row in rows.values()}
    found = field_schemas({"properties": typed}, {}, profile_of(rows, limits), ModelProfile(limits=limits))
    return {field: {key: one for key, one in schema.items() if key != "default"} for field, schema in found.items()}


def form() -> Schema:
    return an_object(
        {"inputs": described(any_of(NON_EMPTY_TEXT, array(NON_EMPTY_TEXT)), "the prompt; repeated, several prompts")},
        {"parameters": described(TEXT, "`parameters` as JSON text"), "stream": described(TEXT, "true or false")},
    )
