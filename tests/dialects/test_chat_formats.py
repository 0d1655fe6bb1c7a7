"""Structured output: every way of asking for it, on completions and chat alike, and schemas that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.errors import InvalidParameter
from dragoman.server.api import Dialect
from dragoman.server.apis.openai_wire.grammars import schema_problem
from dragoman.types import Grammar
from tests.dialects.lmi_calls import request_of as lmi_request
from tests.dialects.lmi_calls import tgi_request
from tests.dialects.openai_calls import chat, chats, complete, completions, http_call, refusal, sampling
from tests.support.tables import table

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
AS_SCHEMA = Grammar("json_schema", json.dumps(SCHEMA, separators=(",", ":")))
JSON = Grammar("json_object")

CASES: list[tuple[str, dict[str, Any], Grammar | None]] = [
    ("text", {"response_format": {"type": "text"}}, None),
    ("json_object", {"response_format": {"type": "json_object"}}, JSON),
    (
        "json_schema",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}},
        AS_SCHEMA,
    ),
    (
        "json_schema without strict",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        AS_SCHEMA,
    ),
    ("huggingface_hub", {"response_format": {"type": "json_object", "value": SCHEMA}}, AS_SCHEMA),
    ("schema beside the type", {"response_format": {"type": "json_object", "schema": SCHEMA}}, AS_SCHEMA),
    ("Text Generation Inference", {"response_format": {"type": "json", "value": SCHEMA}}, AS_SCHEMA),
    ("its regex", {"response_format": {"type": "regex", "value": "a+"}}, Grammar("regex", "a+")),
    ("guided_json", {"guided_json": SCHEMA}, AS_SCHEMA),
    ("guided_json as text", {"guided_json": json.dumps(SCHEMA)}, AS_SCHEMA),
    ("guided_regex", {"guided_regex": "[a-z]+"}, Grammar("regex", "[a-z]+")),
    ("guided_grammar", {"guided_grammar": 'start: "x"'}, Grammar("lark", 'start: "x"')),
    ("guided_choice", {"guided_choice": ["ja", "nein", "ü"]}, Grammar("choice", '["ja","nein","ü"]')),
    ("structured_outputs.json", {"structured_outputs": {"json": SCHEMA}}, AS_SCHEMA),
    ("structured_outputs.regex", {"structured_outputs": {"regex": "a"}}, Grammar("regex", "a")),
    ("structured_outputs.choice", {"structured_outputs": {"choice": ["a"]}}, Grammar("choice", '["a"]')),
    ("structured_outputs.grammar", {"structured_outputs": {"grammar": "g"}}, Grammar("lark", "g")),
    ("structured_outputs.json_object", {"structured_outputs": {"json_object": True}}, JSON),
    ("text and guided", {"response_format": {"type": "text"}, "guided_regex": "a"}, Grammar("regex", "a")),
]


def wrapped(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


@table(("name", "body", "grammar"), CASES, ids=[case[0] for case in CASES])
def test_every_way_of_asking_becomes_one_grammar(name: str, body: dict[str, Any], grammar: Grammar | None) -> None:
    for call in (complete("v1", **body), complete("v3", **body), chat("v1", **body), chat("invocations", **body)):
        assert sampling(call).grammar == grammar


@table(("name", "body", "grammar"), CASES, ids=[case[0] for case in CASES])
def test_lmi_and_tgi_read_them_alike(name: str, body: dict[str, Any], grammar: Grammar | None) -> None:
    if "structured_outputs" in body:
        return  # vLLM's newer object is known to the OpenAI dialects only
    assert lmi_request(body).sampling.grammar == grammar
    if set(body) == {"response_format"} and grammar is not None:
        assert tgi_request({"grammar": body["response_format"]}).sampling.grammar == grammar


@table(
    ("parameters", "message"),
    [
        (
            wrapped({"type": "objekt"}),
            "response_format.json_schema.schema must be a JSON schema: $.type must be one of",
        ),
        ({"guided_json": {"required": "a"}}, "guided_json must be a JSON schema: $.required must be an array"),
        ({"response_format": {"type": "regex"}}, "response_format.value must be a regular expression"),
        ({"guided_choice": ["a"] * 10_001}, "guided_choice must have at most 10000 strings, got 10001"),
    ],
)
def test_lmi_says_what_is_wrong_with_them_as_well(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        lmi_request(parameters)
    assert message in caught.value.message


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json"}}, "response_format.value"),
    ({"response_format": {"type": "regex"}}, "response_format.value"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": "json"}, "response_format"),
    (wrapped({"type": "objekt"}), "response_format.json_schema.schema"),
    (wrapped([1]), "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_object", "value": 7}}, "response_format.value"),
    ({"guided_json": "{oops"}, "guided_json"),
    ({"guided_json": {"required": "a"}}, "guided_json"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": ["a", ""]}, "guided_choice"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ({"guided_json": {}, "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
]


@table(("body", "param"), REFUSED)
def test_a_format_that_cannot_be_followed_is_400(body: dict[str, Any], param: str) -> None:
    calls: list[tuple[Dialect, dict[str, Any]]] = [
        (completions("v1"), {"prompt": "x"}),
        (completions("v3"), {"model": "m", "prompt": "x"}),
        (chats("v1", chat_format="openai"), {"messages": [{"role": "user", "content": "x"}]}),
    ]
    for dialect, own in calls:
        answer = refusal(dialect, http_call({**own, **body}))
        assert (answer.status, answer.param) == (400, param)
        assert answer.message


@table(
    "schema",
    [
        True,
        {},
        SCHEMA,
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"enum": [1, "x", None]}}},
        {"items": [{"type": "string"}, True], "minItems": 1, "maxItems": 3},
        {"type": "number", "minimum": -1.5, "exclusiveMaximum": 3, "multipleOf": 0.5},
        {"properties": {"type": {"type": "string"}, "required": {"type": "boolean"}}},
    ],
)
def test_a_sound_schema_has_no_problem(schema: Any) -> None:
    assert schema_problem(schema) is None


def nested(levels: int) -> dict[str, Any]:
    """A schema of arrays in arrays."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@table(
    ("schema", "place"),
    [
        (5, "$"),
        ({"type": 5}, "$.type"),
        ({"type": ["string", "text"]}, "$.type"),
        ({"properties": []}, "$.properties"),
        ({"properties": {"a": {"items": 5}}}, "$.properties.a.items"),
        ({"anyOf": {}}, "$.anyOf"),
        ({"oneOf": [True, {"enum": []}]}, "$.oneOf[1].enum"),
        ({"enum": "a"}, "$.enum"),
        ({"required": [1]}, "$.required"),
        ({"minLength": -1}, "$.minLength"),
        ({"maxItems": True}, "$.maxItems"),
        ({"minimum": "1"}, "$.minimum"),
        ({"pattern": 1}, "$.pattern"),
        ({"$defs": {"a": {"type": "x"}}}, "$.$defs.a.type"),
        ({"items": [{"type": "x"}]}, "$.items[0].type"),
        (nested(70), "$.items"),
    ],
)
def test_a_problem_of_a_schema_is_told_with_its_place(schema: Any, place: str) -> None:
    problem = schema_problem(schema)
    assert problem is not None
    assert problem.startswith(place)
