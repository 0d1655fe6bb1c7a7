"""Turns `response_format` and the `guided_*` parameters into a neutral grammar.

Does: accept every way clients have of asking for structured output, refuse two at once and schemas that are malformed.
Does not: compile grammars; the service does, and reports what only a compiler can find.
Called by `openai_sampling`, on the event loop. Sources: OpenAI API reference, structured outputs; vLLM guided decoding;
Text Generation Inference's `response_format`, which huggingface_hub's client sends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from dragoman.server.dialects.openai_fields import shown
from dragoman.server.dialects.openai_profile import Profile
from dragoman.types import Grammar


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """`response_format.json_schema`. The schema is enforced whether or not `strict` is set."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """`response_format`. `value` and `schema` carry the schema in other servers' forms of `json_object`."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    value: Any = None
    schema: dict[str, Any] | bool | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """`structured_outputs`: the `guided_*` parameters in one object, as newer vLLM clients send them."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class GrammarFields(msgspec.Struct, kw_only=True):
    """The parameters that constrain the output; at most one may be given."""

    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: list[str] | None = None
    structured_outputs: StructuredOutputs | None = None


def read_grammar(body: GrammarFields, profile: Profile) -> Grammar | None:
    """The constraint the client asked for, None for free text. Raises: InvalidRequest."""
    asked = dict(_constraints(body, profile))
    if len(asked) > 1:
        first, second = list(asked)[:2]
        raise profile.fault(second, "conflict", f"{second} cannot be used together with {first}: give one of them")
    return next(iter(asked.values()), None)


def _constraints(body: GrammarFields, profile: Profile) -> Iterator[tuple[str, Grammar]]:
    if body.response_format is not None:
        grammar = _response_format(body.response_format, profile)
        if grammar is not None:
            yield "response_format", grammar
    outputs = body.structured_outputs or StructuredOutputs()
    sources: tuple[tuple[str, Any, Callable[[str, Any, Profile], Grammar]], ...] = (
        ("guided_json", body.guided_json, _json_schema),
        ("guided_regex", body.guided_regex, _regex),
        ("guided_grammar", body.guided_grammar, _lark),
        ("guided_choice", body.guided_choice, _choice),
        ("structured_outputs.json", outputs.json, _json_schema),
        ("structured_outputs.regex", outputs.regex, _regex),
        ("structured_outputs.grammar", outputs.grammar, _lark),
        ("structured_outputs.choice", outputs.choice, _choice),
    )
    for param, value, build in sources:
        if value is not None:
            yield param, build(param, value, profile)
    if outputs.json_object:
        yield "structured_outputs.json_object", Grammar("json_object")


def _response_format(asked: ResponseFormat, profile: Profile) -> Grammar | None:
    match asked.type:
        case "text":
            return None
        case "json_schema" | "json" | "json_object":
            param, schema = _schema_of(asked)
            if schema is not None:
                return _json_schema(param, schema, profile)
            if asked.type == "json_object":
                return Grammar("json_object")
            raise profile.fault(param, "missing", f"{param} is missing: it must be a JSON schema")
        case "regex":
            return _regex("response_format.value", asked.value, profile)
        case _:
            allowed = "text, json_object, json_schema, json or regex"
            message = f"response_format.type must be {allowed}, got {shown(asked.type)}"
            raise profile.fault("response_format.type", "value", message)


def _schema_of(asked: ResponseFormat) -> tuple[str, Any]:
    """Where the schema is, and the schema: OpenAI nests it, huggingface_hub sends `value`, others `schema`."""
    if asked.json_schema is not None:
        return "response_format.json_schema.schema", asked.json_schema.schema
    if asked.schema is not None:
        return "response_format.schema", asked.schema
    if asked.type == "json_schema" and asked.value is None:
        return "response_format.json_schema", None
    return "response_format.value", asked.value


def _json_schema(param: str, value: Any, profile: Profile) -> Grammar:
    schema = value
    if isinstance(value, str):
        try:
            schema = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            raise profile.fault(param, "value", f"{param} must hold JSON, got {shown(value)}") from None
    problem = schema_problem(schema)
    if problem:
        raise profile.fault(param, "value", f"{param} must be a valid JSON schema: {problem}")
    return Grammar("json_schema", json.dumps(schema, ensure_ascii=False))


def _regex(param: str, value: Any, profile: Profile) -> Grammar:
    return Grammar("regex", _text(param, value, "a regular expression", profile))


def _lark(param: str, value: Any, profile: Profile) -> Grammar:
    return Grammar("lark", _text(param, value, "a grammar", profile))


def _text(param: str, value: Any, what: str, profile: Profile) -> str:
    if not isinstance(value, str) or not value:
        raise profile.fault(param, "value", f"{param} must be {what} in a non-empty string, got {shown(value)}")
    return value


def _choice(param: str, value: list[str], profile: Profile) -> Grammar:
    if not value or "" in value:
        raise profile.fault(param, "value", f"{param} must be a list of non-empty strings, got {shown(value)}")
    return Grammar("choice", json.dumps(value, ensure_ascii=False))


# --- is it a JSON schema? ---------------------------------------------------------------------------------------------

_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_SCHEMA_KEYWORDS = ("items", "additionalProperties", "not", "contains", "if", "then", "else", "propertyNames")
_SCHEMA_LIST_KEYWORDS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SCHEMA_MAP_KEYWORDS = ("properties", "patternProperties", "$defs", "definitions")
_COUNT_KEYWORDS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NUMBER_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_MAX_SCHEMA_DEPTH = 64


def schema_problem(schema: Any, path: str = "$", depth: int = 0) -> str | None:
    """What makes `schema` no JSON schema, on one line with its place; None if its structure is sound.

    Source: JSON Schema 2020-12, the meta-schema's types of the keywords that constrain generation.
    """
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, dict):
        return f"{path} must be an object or a boolean, got {shown(schema)}"
    if depth > _MAX_SCHEMA_DEPTH:
        return f"{path} is nested more than {_MAX_SCHEMA_DEPTH} levels deep"
    problems = (own for own in (_keyword_problem(schema, path), _type_problem(schema, path)) if own)
    found = next(problems, None)
    if found:
        return found
    for child_path, child in _children(schema, path):
        found = schema_problem(child, child_path, depth + 1)
        if found:
            return found
    return None


def _type_problem(schema: Mapping[str, Any], path: str) -> str | None:
    names = schema.get("type", [])
    for name in names if isinstance(names, list) else [names]:
        if not isinstance(name, str) or name not in _TYPES:
            return f"{path}.type must be one of {', '.join(sorted(_TYPES))}, got {shown(name)}"
    return None


def _keyword_problem(schema: Mapping[str, Any], path: str) -> str | None:
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return f"{path}.required must be an array of strings, got {shown(required)}"
    if "enum" in schema and (not isinstance(schema["enum"], list) or not schema["enum"]):
        return f"{path}.enum must be a non-empty array, got {shown(schema['enum'])}"
    for keyword in ("$ref", "pattern", "format"):
        if not isinstance(schema.get(keyword, ""), str):
            return f"{path}.{keyword} must be a string, got {shown(schema[keyword])}"
    return _number_problem(schema, path) or _container_problem(schema, path)


def _number_problem(schema: Mapping[str, Any], path: str) -> str | None:
    for keyword in _COUNT_KEYWORDS:
        value = schema.get(keyword, 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            return f"{path}.{keyword} must be an integer of at least 0, got {shown(value)}"
    for keyword in _NUMBER_KEYWORDS:
        value = schema.get(keyword, 0)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return f"{path}.{keyword} must be a number, got {shown(value)}"
    return None


def _container_problem(schema: Mapping[str, Any], path: str) -> str | None:
    for keyword in _SCHEMA_MAP_KEYWORDS:
        if not isinstance(schema.get(keyword, {}), dict):
            return f"{path}.{keyword} must be an object, got {shown(schema[keyword])}"
    for keyword in _SCHEMA_LIST_KEYWORDS:
        if not isinstance(schema.get(keyword, []), list):
            return f"{path}.{keyword} must be an array, got {shown(schema[keyword])}"
    return None


def _children(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for keyword in _SCHEMA_KEYWORDS:
        value = schema.get(keyword, True)
        if keyword == "items" and isinstance(value, list):  # the tuple form of drafts before 2020-12
            yield from ((f"{path}.items[{i}]", child) for i, child in enumerate(value))
        else:
            yield f"{path}.{keyword}", value
    for keyword in _SCHEMA_MAP_KEYWORDS:
        yield from ((f"{path}.{keyword}.{name}", child) for name, child in schema.get(keyword, {}).items())
    for keyword in _SCHEMA_LIST_KEYWORDS:
        yield from ((f"{path}.{keyword}[{i}]", child) for i, child in enumerate(schema.get(keyword, [])))
