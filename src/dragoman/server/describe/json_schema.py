"""Builds small pieces of JSON Schema 2020-12, as OpenAPI 3.1 uses it, and takes over the schemas of Structs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from dragoman.parameters import Bounds

Schema = dict[str, Any]

REFERENCE = "#/components/schemas/"

TEXT: Schema = {"type": "string"}
NON_EMPTY_TEXT: Schema = {"type": "string", "minLength": 1}
BOOLEAN: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
LENIENT_BOOLEAN: Schema = {
    "anyOf": [
        BOOLEAN,
        {"enum": [0, 1]},
        {"type": "string", "pattern": "^([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]|[01])$"},
    ]
}
NUMBER: Schema = {"type": "number"}
NULL: Schema = {"type": "null"}


def ref(name: str) -> Schema:
    return {"$ref": f"{REFERENCE}{name}"}


def array(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


def any_of(*choices: Schema) -> Schema:
    return {"anyOf": list(choices)}


def an_object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None, text: str = "") -> Schema:
    """An object; other fields are allowed as well."""
    schema: Schema = {"type": "object", "properties": {**required, **(optional or {})}}
    if required:
        schema["required"] = list(required)
    return {"description": text, **schema} if text else schema


def described(schema: Schema, text: str, default: Any = None) -> Schema:
    return {**({"description": text} if text else {}), **schema, **({} if default is None else {"default": default})}


def nullable(schema: Schema) -> Schema:
    if NULL in schema.get("anyOf", ()):
        return schema
    if "anyOf" in schema and len(schema) == 1:
        return any_of(*schema["anyOf"], NULL)
    return any_of(schema, NULL)


def without_null(schema: Mapping[str, Any]) -> Schema:
    """The schema without its null alternative and its default."""
    choices = [choice for choice in schema.get("anyOf", [schema]) if choice != NULL]
    kept = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    if len(choices) == 1:
        return dict(choices[0]) if "anyOf" in schema else kept
    return {**kept, "anyOf": choices}


def range_of(bounds: Bounds) -> Schema:
    keywords: Schema = {}
    if bounds.low is not None:
        keywords["exclusiveMinimum" if bounds.is_low_open else "minimum"] = bounds.low
    if bounds.high is not None:
        keywords["exclusiveMaximum" if bounds.is_high_open else "maximum"] = bounds.high
    return keywords


def struct_schemas(types: Sequence[Any]) -> dict[str, Schema]:
    """The components of these Structs and of all that they refer to, by class name."""
    _, components = msgspec.json.schema_components(types, ref_template=f"{REFERENCE}{{name}}")
    return {name: dict(schema) for name, schema in components.items()}


@cache  # a document asks a thousand times for some thirty of them
def schema_of(kind: Any) -> Schema:
    """The schema of a Struct, or of a type made of them; refers to `struct_schemas`. Shared: do not change it."""
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=f"{REFERENCE}{{name}}")
    return schema


def references(value: Any) -> Iterator[str]:
    """The names of the components that `value` refers to directly."""
    if isinstance(value, Mapping):
        target = value.get("$ref")
        if isinstance(target, str) and target.startswith(REFERENCE):
            yield target.removeprefix(REFERENCE)
        for child in value.values():
            yield from references(child)
    elif isinstance(value, list):
        for child in value:
            yield from references(child)


def used_components(start: Any, components: Mapping[str, Schema]) -> dict[str, Schema]:
    """The components that can be reached from `start`, sorted by name. Raises: KeyError."""
    used: set[str] = set()
    waiting = list(references(start))
    while waiting:
        name = waiting.pop()
        if name not in used:
            used.add(name)
            waiting.extend(references(components[name]))
    return {name: components[name] for name in sorted(used)}
