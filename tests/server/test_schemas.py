"""What of a schema cannot be enforced: each API passes it over and names it, or refuses it where the schema is strict."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dragoman.tokenizer.chat_template import ChatTemplate
from tests.support.small_server import AppCall, Parts, run, small_server

pytest.importorskip("llguidance")

SET = {"type": "array", "items": {"enum": [1]}, "uniqueItems": True, "minItems": 2, "maxItems": 2}
DIGITS = {"type": "object", "properties": {"digits": SET}}
USER = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 20}
INPUT = {"input": "Hello.", "max_output_tokens": 20}
TEXT = {"prompt": "Hello.", "max_tokens": 20}


def function(schema: Any, strict: bool | None = None) -> dict[str, Any]:
    more = {} if strict is None else {"strict": strict}
    return {"name": "count", "parameters": schema, **more}


def json_schema(schema: Any, strict: bool | None = None) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}


Row = tuple[str, dict[str, Any], str]
"""Path, body, and the place that is to be named."""

WAYS_IN: dict[str, Row] = {
    "chat": (
        "/v1/chat/completions",
        {**USER, "response_format": json_schema(SET)},
        "response_format.json_schema.schema.uniqueItems",
    ),
    "chat, OVMS": (
        "/v3/chat/completions",
        {**USER, "model": "fake", "response_format": json_schema(SET)},
        "response_format.json_schema.schema.uniqueItems",
    ),
    "chat tools": (
        "/v1/chat/completions",
        {**USER, "tools": [{"type": "function", "function": function(DIGITS)}]},
        "tools[0].function.parameters.properties.digits.uniqueItems",
    ),
    "chat functions": (
        "/v1/chat/completions",
        {**USER, "functions": [function(DIGITS)]},
        "functions[0].parameters.properties.digits.uniqueItems",
    ),
    "chat guided": ("/v1/chat/completions", {**USER, "guided_json": DIGITS}, "guided_json.properties.digits.uniqueItems"),
    "completions": ("/v1/completions", {**TEXT, "guided_json": json.dumps(SET)}, "guided_json.uniqueItems"),
    "structured outputs": (
        "/v1/completions",
        {**TEXT, "structured_outputs": {"json": SET}},
        "structured_outputs.json.uniqueItems",
    ),
    "responses": (
        "/v1/responses",
        {**INPUT, "text": {"format": {"type": "json_schema", "name": "x", "schema": SET}}},
        "text.format.schema.uniqueItems",
    ),
    "responses tools": (
        "/v1/responses",
        {**INPUT, "tools": [{"type": "function", **function(DIGITS)}]},
        "tools[0].parameters.properties.digits.uniqueItems",
    ),
    "messages": (
        "/v1/messages",
        {**USER, "model": "fake", "output_format": {"type": "json_schema", "schema": SET}},
        "output_format.schema.uniqueItems",
    ),
    "messages, output_config": (
        "/v1/messages",
        {**USER, "model": "fake", "output_config": {"format": {"type": "json_schema", "schema": SET}}},
        "output_config.format.schema.uniqueItems",
    ),
    "messages tools": (
        "/v1/messages",
        {**USER, "model": "fake", "tools": [{"name": "count", "input_schema": DIGITS}]},
        "tools[0].input_schema.properties.digits.uniqueItems",
    ),
    "Ollama's chat": ("/api/chat", {**USER, "model": "fake", "stream": False, "format": SET}, "format.uniqueItems"),
    "Ollama's generate": ("/api/generate", {"model": "fake", "prompt": "Hello.", "format": SET}, "format.uniqueItems"),
    "Ollama's tools": (
        "/api/chat",
        {**USER, "model": "fake", "tools": [{"type": "function", "function": function(DIGITS)}]},
        "tools[0].function.parameters.properties.digits.uniqueItems",
    ),
    "LMI": (
        "/invocations",
        {"inputs": "Hello.", "parameters": {"response_format": json_schema(SET)}},
        "response_format.json_schema.schema.uniqueItems",
    ),
    "LMI guided": ("/invocations", {"inputs": "Hello.", "parameters": {"guided_json": SET}}, "guided_json.uniqueItems"),
    "TGI": (
        "/generate",
        {"inputs": "Hello.", "parameters": {"grammar": {"type": "json", "value": SET}}},
        "grammar.value.uniqueItems",
    ),
}  # fmt: skip


def called(rows: list[tuple[str, Any]]) -> list[AppCall]:
    """The answers to these bodies."""
    answers: list[AppCall] = []

    async def call_all() -> None:
        async with small_server(
            Parts(template=ChatTemplate("{{ messages[0].content }}{% if tools %}{% endif %}", is_vouched=True))
        ) as server:
            calls = [server.call(path, body, ("authorization", "Bearer x")) for path, body in rows]
            answers.extend(await asyncio.gather(*(call.ended() for call in calls)))

    run(call_all)
    return answers


def test_every_api_names_what_it_passes_over() -> None:
    answers = called([(path, body) for path, body, _ in WAYS_IN.values()])
    named = {
        name: [answer.status, *answer.headers.get("x-dragoman-ignored", "").split(",")]
        for name, answer in zip(WAYS_IN, answers, strict=True)
    }
    expected = {name: place for name, (_, _, place) in WAYS_IN.items()}
    assert {name: found for name, found in named.items() if found[0] != 200 or expected[name] not in found} == {}


STRICT: dict[str, Row] = {
    "chat": (
        "/v1/chat/completions",
        {**USER, "response_format": json_schema(SET, strict=True)},
        "response_format.json_schema.schema.uniqueItems cannot be enforced, as strict: true asks: items are not compared; "
        "leave it out, or send strict: false",
    ),
    "chat tools": (
        "/v1/chat/completions",
        {**USER, "tools": [{"type": "function", "function": function(DIGITS, strict=True)}]},
        "tools[0].function.parameters.properties.digits.uniqueItems of tool count cannot be enforced",
    ),
    "responses": (
        "/v1/responses",
        {"input": "Hello.", "text": {"format": {"type": "json_schema", "name": "x", "schema": SET, "strict": True}}},
        "text.format.schema.uniqueItems cannot be enforced",
    ),
    "responses tools": (
        "/v1/responses",
        {"input": "Hello.", "tools": [{"type": "function", **function(DIGITS, strict=True)}]},
        "tools[0].parameters.properties.digits.uniqueItems of tool count cannot be enforced",
    ),
    "messages tools": (
        "/v1/messages",
        {**USER, "model": "fake", "tools": [{"name": "count", "input_schema": DIGITS, "strict": True}]},
        "tools[0].input_schema.properties.digits.uniqueItems of tool count cannot be enforced",
    ),
    "LMI": (
        "/invocations",
        {"inputs": "Hello.", "parameters": {"response_format": json_schema(SET, strict=True)}},
        "response_format.json_schema.schema.uniqueItems cannot be enforced",
    ),
}
NEVER = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 2}}, "required": ["a"]}
FAULTS: dict[str, Row] = {
    "a reference to nothing": (
        "/v1/chat/completions",
        {**USER, "response_format": json_schema({"items": {"$ref": "#/nowhere"}})},
        "response_format.json_schema.schema must be a JSON schema: $.items.$ref leads to nothing",
    ),
    "no value": (
        "/v1/completions",
        {**TEXT, "guided_json": NEVER},
        "guided_json: the json_schema grammar does not compile: at $.properties.a: "
        "no value can match: minimum (5) is greater than maximum (2)",
    ),
    "a pattern": (
        "/v1/responses",
        {"input": "Hello.", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"pattern": "("}}}},
        "text.format.schema: the json_schema grammar does not compile: regex parse error",
    ),
    "an expression": (
        "/generate",
        {"inputs": "Hello.", "parameters": {"grammar": {"type": "regex", "value": "("}}},
        "grammar.value: the regex grammar does not compile: ",
    ),
    "no root": (
        "/v1/chat/completions",
        {**USER, "guided_grammar": 'foo ::= "a"'},
        "guided_grammar: the GBNF grammar does not compile: it has no rule named root",
    ),
    "no such rule": (
        "/v1/completions",
        {**TEXT, "guided_grammar": 'root ::= "a"\n  | foo'},
        "guided_grammar: the GBNF grammar does not compile: line 2: there is no rule named 'foo'",
    ),
    "a cut escape": (
        "/v1/completions",
        {**TEXT, "structured_outputs": {"grammar": 'root ::= "\\'}},
        "structured_outputs.grammar: the GBNF grammar does not compile: line 1: a text that does not end",
    ),
    "a cut escape, LMI": (
        "/invocations",
        {"inputs": "Hello.", "parameters": {"guided_grammar": 'root ::= "\\u00'}},
        "guided_grammar: the GBNF grammar does not compile: line 1: a text that does not end",
    ),
    "a rule that never ends": (
        "/v1/completions",
        {**TEXT, "guided_grammar": 'root ::= root "a"'},
        "guided_grammar: the GBNF grammar does not compile: it never comes to an end",
    ),
}


def test_what_is_wrong_is_a_bad_request_that_names_parameter_and_place() -> None:
    rows = {**STRICT, **FAULTS}
    answers = called([(path, body) for path, body, _ in rows.values()])
    wrong = {
        name: (answer.status, answer.body.decode())
        for (name, (_, _, message)), answer in zip(rows.items(), answers, strict=True)
        if answer.status not in (400, 422, 424)
        or json.dumps(message, ensure_ascii=False)[1:-1] not in answer.body.decode()
    }
    assert wrong == {}
