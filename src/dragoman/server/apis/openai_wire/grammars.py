"""Reads every way of asking for structured output into a neutral grammar. On the event loop.

Sources: OpenAI API reference, structured outputs; vLLM guided decoding; TGI's `response_format`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from dragoman.parameters import SamplingFields
from dragoman.schemas.enforceable import enforceable
from dragoman.schemas.places import SCHEMA_LIST_KEYWORDS, SCHEMA_MAP_KEYWORDS, Place, inner_schemas
from dragoman.server.apis.openai_wire.fields import shown
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.json_body import NotJson, TooMuchJson, decode_json
from dragoman.types import Grammar

MAX_CHOICES = 10_000  # a fifth of a second to compile, and the time grows with the square


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """`response_format.json_schema`. With `strict`, a schema that cannot be enforced as a whole is refused."""

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
    strict: bool | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """`structured_outputs`: the `guided_*` parameters in one object, as newer vLLM clients send them."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class GrammarFields(SamplingFields, kw_only=True):
    """The parameters that constrain the output. (A Struct has one base: the samplers'.)"""

    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: list[str] | None = None
    structured_outputs: StructuredOutputs | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None


def read_grammar(body: GrammarFields, profile: Profile) -> Grammar | None:
    """The constraint that `body` asks for, None if it asks for none. Raises: InvalidRequest."""
    constraints = dict(_constraints(body, profile))
    if len(constraints) > 1:
        first, second = list(constraints)[:2]
        raise profile.conflict(second, first)
    return next(iter(constraints.values()), None)


def _constraints(body: GrammarFields, profile: Profile) -> Iterator[tuple[str, Grammar]]:
    if body.response_format is not None:
        grammar = read_response_format("response_format", body.response_format, profile)
        if grammar is not None:
            yield "response_format", grammar
    outputs = body.structured_outputs or StructuredOutputs()
    sources: tuple[tuple[str, Any, Callable[[str, Any, Profile], Grammar]], ...] = (
        ("guided_json", body.guided_json, read_json_schema),
        ("guided_regex", body.guided_regex, read_regex),
        ("guided_grammar", body.guided_grammar, read_lark),
        ("guided_choice", body.guided_choice, read_choice),
        ("grammar", body.grammar or None, read_gbnf),
        ("json_schema", body.json_schema, read_schema_or_object),
        ("structured_outputs.json", outputs.json, read_json_schema),
        ("structured_outputs.regex", outputs.regex, read_regex),
        ("structured_outputs.grammar", outputs.grammar, read_lark),
        ("structured_outputs.choice", outputs.choice, read_choice),
    )
    for param, value, read in sources:
        if value is not None:
            yield param, read(param, value, profile)
    if outputs.json_object:
        param = "structured_outputs.json_object"
        yield param, Grammar("json_object", param=param)


# --- one parameter each: every reader raises InvalidRequest -------------------------------------------------------------


def read_response_format(param: str, response_format: ResponseFormat, profile: Profile) -> Grammar | None:
    """The grammar of a `response_format`; None for plain text."""
    match response_format.type:
        case "text":
            return None
        case "json_schema" | "json" | "json_object":
            place, schema = _schema_of(param, response_format)
            if schema is not None and not (response_format.type == "json_object" and schema == {}):
                is_strict = bool(
                    response_format.strict
                    or (response_format.json_schema is not None and response_format.json_schema.strict)
                )
                return read_json_schema(place, schema, profile, is_strict=is_strict)
            if response_format.type == "json_object":
                return Grammar("json_object", param=param)
            raise profile.missing(place, "a JSON schema")
        case "regex":
            return read_regex(f"{param}.value", response_format.value, profile)
        case _:
            allowed = "text, json_object, json_schema, json or regex"
            raise profile.wrong(f"{param}.type", allowed, response_format.type)


def read_json_schema(param: str, value: Any, profile: Profile, *, is_strict: bool = False) -> Grammar:
    """The grammar of a JSON schema, given as an object or as its text. Strict: all of it must be enforced."""
    schema = value
    if isinstance(value, str):
        try:
            schema = decode_json(value.encode())
        except TooMuchJson as error:
            raise profile.fault(param, "value", f"{param} must be a JSON schema of some size: {error}") from None
        except NotJson:
            raise profile.wrong(param, "a JSON schema", value) from None
    problem = schema_problem(schema)
    if problem:
        raise profile.fault(param, "value", f"{param} must be a JSON schema: {problem}")
    passed_over = parts_passed_over(param, schema, profile, is_strict=is_strict, has_faults=False)
    return Grammar("json_schema", msgspec.json.encode(schema).decode(), param=param, passed_over=passed_over)


def parts_passed_over(
    param: str, schema: Any, profile: Profile, *, of: str = "", is_strict: bool, has_faults: bool
) -> dict[str, str]:
    """The parts of a schema that are not enforced, and why. Raises: InvalidRequest for the first one if it is strict.

    `of`: whose the schema is, for errors. `has_faults`: references to nothing are passed over, too.
    """
    found = enforceable(schema).passed_over
    for place, reason, is_fault in found:
        if is_fault and not has_faults:
            raise profile.fault(param, "value", f"{param} must be a JSON schema: ${place} {reason}")
        if is_strict:
            advice = "leave it out, or send strict: false"
            message = f"{param}{place}{of} cannot be enforced, as strict: true asks: {reason}; {advice}"
            raise profile.fault(f"{param}{place}", "value", message)
    return {f"{param}{fault.place}": fault.reason for fault in found}


def read_regex(param: str, value: Any, profile: Profile) -> Grammar:
    return Grammar("regex", _text(param, value, "a regular expression", profile), param=param)


def read_lark(param: str, value: Any, profile: Profile) -> Grammar:
    return Grammar("lark", _text(param, value, "a Lark grammar", profile), param=param)


def read_gbnf(param: str, value: str, profile: Profile) -> Grammar:
    """Takes GBNF, or Lark after %llguidance, as builds of llama.cpp with that library do."""
    if not value.startswith("%llguidance") and "::=" not in value:
        raise profile.wrong(param, "GBNF, rules like root ::= ...", value)
    return Grammar("lark", value, param=param)


def read_schema_or_object(param: str, value: dict[str, Any], profile: Profile) -> Grammar:
    """The grammar of llama.cpp's `json_schema`: an empty one is any object."""
    return read_json_schema(param, value, profile) if value else Grammar("json_object", param=param)


def read_choice(param: str, value: list[str], profile: Profile) -> Grammar:
    if not value or "" in value:
        raise profile.wrong(param, "a list of non-empty strings", value)
    if len(value) > MAX_CHOICES:
        raise profile.fault(param, "value", f"{param} must have at most {MAX_CHOICES} strings, got {len(value)}")
    return Grammar("choice", msgspec.json.encode(value).decode(), param=param)


def _schema_of(param: str, response_format: ResponseFormat) -> tuple[str, Any]:
    """The schema's place, and the schema: OpenAI nests it, huggingface_hub sends `value`, TGI names it there."""
    if response_format.json_schema is not None:
        return f"{param}.json_schema.schema", response_format.json_schema.schema
    if response_format.schema is not None:
        return f"{param}.schema", response_format.schema
    match response_format:
        case ResponseFormat(type="json_schema", value=None):
            return f"{param}.json_schema", None
        case ResponseFormat(type="json_schema", value={"schema": dict() | bool() as schema}):
            return f"{param}.value.schema", schema
    return f"{param}.value", response_format.value


def _text(param: str, value: Any, what: str, profile: Profile) -> str:
    if not isinstance(value, str) or not value:
        raise profile.wrong(param, f"{what} in a non-empty string", value)
    return value


# --- is it a JSON schema? ---------------------------------------------------------------------------------------------

_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_COUNT_KEYWORDS = (
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
)
_BOUND_KEYWORDS = ("minimum", "maximum")
_EXCLUSIVE_KEYWORDS = ("exclusiveMinimum", "exclusiveMaximum")
_MAX_SCHEMA_DEPTH = 64


class _Rule(NamedTuple):
    """The check of a keyword's value, and its words for errors."""

    holds: Callable[[Any], bool]
    words: str


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= {str}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_type(value: Any) -> bool:
    return (isinstance(value, str) and value in _TYPES) or (_are_texts(value) and _TYPES.issuperset(value))


_RULES: Mapping[str, _Rule] = {
    "type": _Rule(_is_type, f"must be one of {', '.join(sorted(_TYPES))}"),
    "required": _Rule(_are_texts, "must be an array of strings"),
    "enum": _Rule(lambda value: isinstance(value, list) and bool(value), "must be a non-empty array"),
    **dict.fromkeys(("$ref", "pattern", "format"), _Rule(lambda value: isinstance(value, str), "must be a string")),
    **dict.fromkeys(
        _COUNT_KEYWORDS, _Rule(lambda value: type(value) is int and value >= 0, "must be an integer of at least 0")
    ),
    **dict.fromkeys(_BOUND_KEYWORDS, _Rule(_is_number, "must be a number")),
    **dict.fromkeys(_EXCLUSIVE_KEYWORDS, _Rule(lambda value: isinstance(value, int | float), "must be a number")),
    "multipleOf": _Rule(lambda value: _is_number(value) and value > 0, "must be a number above 0"),
    **dict.fromkeys(SCHEMA_MAP_KEYWORDS, _Rule(lambda value: isinstance(value, dict), "must be an object")),
    **dict.fromkeys(SCHEMA_LIST_KEYWORDS, _Rule(lambda value: isinstance(value, list), "must be an array")),
}
"""Source: JSON Schema 2020-12, the meta-schema. Exclusive bounds may be truth values, as in draft 4."""


def schema_problem(schema: Any) -> str | None:
    """The first fault in the structure of a JSON schema, on one line with its place; None if it is sound."""
    level: list[tuple[Place, Any]] = [(Place(None, "$"), schema)]
    for _ in range(_MAX_SCHEMA_DEPTH + 1):
        inner: list[tuple[Place, Any]] = []
        for place, part in level:
            if isinstance(part, bool):
                continue
            if not isinstance(part, dict):
                return f"{place} must be an object or a boolean, got {shown(part)}"
            for name, value in part.items():
                rule = _RULES.get(name)
                if rule is not None and not rule.holds(value):
                    return f"{place}.{name} {rule.words}, got {shown(value)}"
            inner.extend(inner_schemas(part, place))
        if not inner:
            return None
        level = inner
    return f"{level[0][0]} is nested more than {_MAX_SCHEMA_DEPTH} levels deep"
