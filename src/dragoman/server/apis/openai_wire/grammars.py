"""Reads the parameters that constrain the output text into a neutral grammar, for every dialect.

Does: accept every way clients have of asking for structured output, refuse what is malformed and two constraints at once.
Does not: compile grammars; the service does, and reports what only a compiler can find.
Called by `sampling`, `chat.messages` and `lmi.parameters`, on the event loop. Sources: OpenAI API reference, structured
outputs; vLLM guided decoding; Text Generation Inference's `grammar`, and its `response_format`, which huggingface_hub sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from dragoman.server.apis.openai_wire.fields import shown
from dragoman.types import Grammar

MAX_CHOICES = 10_000  # a fifth of a second to compile, and the time grows with the square


class GrammarFault(ValueError):
    """What is wrong with a parameter: `param` is its name or a place in it, the message goes on from there.

    `problem`: value, missing or conflict.
    """

    def __init__(self, param: str, problem: str, message: str) -> None:
        super().__init__(message)
        self.param = param
        self.problem = problem


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


def read_grammar(body: GrammarFields) -> Grammar | None:
    """The constraint that `body` asks for, None if it asks for none. Raises: GrammarFault."""
    asked = dict(_constraints(body))
    if len(asked) > 1:
        first, second = list(asked)[:2]
        raise GrammarFault(second, "conflict", f"cannot be used together with {first}: give one of them")
    return next(iter(asked.values()), None)


def _constraints(body: GrammarFields) -> Iterator[tuple[str, Grammar]]:
    if body.response_format is not None:
        grammar = read_response_format("response_format", body.response_format)
        if grammar is not None:
            yield "response_format", grammar
    outputs = body.structured_outputs or StructuredOutputs()
    sources: tuple[tuple[str, Any, Callable[[str, Any], Grammar]], ...] = (
        ("guided_json", body.guided_json, read_json_schema),
        ("guided_regex", body.guided_regex, read_regex),
        ("guided_grammar", body.guided_grammar, read_lark),
        ("guided_choice", body.guided_choice, read_choice),
        ("structured_outputs.json", outputs.json, read_json_schema),
        ("structured_outputs.regex", outputs.regex, read_regex),
        ("structured_outputs.grammar", outputs.grammar, read_lark),
        ("structured_outputs.choice", outputs.choice, read_choice),
    )
    for param, value, read in sources:
        if value is not None:
            yield param, read(param, value)
    if outputs.json_object:
        yield "structured_outputs.json_object", Grammar("json_object")


# --- one parameter each: every reader raises GrammarFault -------------------------------------------------------------


def read_response_format(param: str, value: Any) -> Grammar | None:
    """The grammar of a `response_format`, as its Struct or as plain JSON; None for plain text."""
    asked = _as_format(param, value)
    match asked.type:
        case "text":
            return None
        case "json_schema" | "json" | "json_object":
            place, schema = _schema_of(param, asked)
            if schema is not None and not (asked.type == "json_object" and schema == {}):
                return read_json_schema(place, schema)
            if asked.type == "json_object":
                return Grammar("json_object")
            raise GrammarFault(place, "missing", "is missing: it must be a JSON schema")
        case "regex":
            return read_regex(f"{param}.value", asked.value)
        case _:
            allowed = "text, json_object, json_schema, json or regex"
            raise GrammarFault(f"{param}.type", "value", f"must be {allowed}, got {shown(asked.type)}")


def read_json_schema(param: str, value: Any) -> Grammar:
    """The grammar of a JSON schema, given as an object or as its text."""
    schema = value
    if isinstance(value, str):
        try:
            schema = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            raise GrammarFault(param, "value", f"must be a JSON schema, got {shown(value)}") from None
    problem = schema_problem(schema)
    if problem:
        raise GrammarFault(param, "value", f"must be a JSON schema: {problem}")
    return Grammar("json_schema", msgspec.json.encode(schema).decode())


def read_regex(param: str, value: Any) -> Grammar:
    """The grammar of a regular expression."""
    return Grammar("regex", _text(param, value, "a regular expression"))


def read_lark(param: str, value: Any) -> Grammar:
    """The grammar of a Lark text."""
    return Grammar("lark", _text(param, value, "a Lark grammar"))


def read_choice(param: str, value: Any) -> Grammar:
    """The grammar that allows exactly one of the given texts."""
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise GrammarFault(param, "value", f"must be a list of non-empty strings, got {shown(value)}")
    if len(value) > MAX_CHOICES:
        raise GrammarFault(param, "value", f"must have at most {MAX_CHOICES} strings, got {len(value)}")
    return Grammar("choice", msgspec.json.encode(value).decode())


def _as_format(param: str, value: Any) -> ResponseFormat:
    if isinstance(value, ResponseFormat):
        return value
    try:
        return msgspec.convert(value, ResponseFormat)
    except msgspec.ValidationError as error:
        allowed = "an object with type text, json_object, json_schema, json or regex"
        raise GrammarFault(param, "value", f"must be {allowed}, got {shown(value)}") from error


def _schema_of(param: str, asked: ResponseFormat) -> tuple[str, Any]:
    """Where the schema is, and the schema: OpenAI nests it, huggingface_hub sends `value`, TGI names it there."""
    if asked.json_schema is not None:
        return f"{param}.json_schema.schema", asked.json_schema.schema
    if asked.schema is not None:
        return f"{param}.schema", asked.schema
    match asked:
        case ResponseFormat(type="json_schema", value=None):
            return f"{param}.json_schema", None
        case ResponseFormat(type="json_schema", value={"schema": dict() | bool() as schema}):
            return f"{param}.value.schema", schema
    return f"{param}.value", asked.value


def _text(param: str, value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise GrammarFault(param, "value", f"must be {what} in a non-empty string, got {shown(value)}")
    return value


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
