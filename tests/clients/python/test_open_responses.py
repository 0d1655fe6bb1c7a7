"""The public compliance suite of Open Responses (openresponses.org), against the real server.

The suite is a program in TypeScript that no package carries. Its cases are written anew here: what is sent, and what must
come. They follow the suite of 15 July 2026 (commit 92c12d9 of openresponses/openresponses); going on from a response follows
a draft. The package openresponses-types has the types of the specification of 24 April 2026, and is generated from it.
Beyond the suite, every case is asked for whole and streamed, and more kinds of responses are tried.

Not here: the suite's case that sends nothing. The last test asserts that compaction and WebSockets, which dragoman does not
offer, are refused.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from tests.support.server_process import serve

MODEL = "demo-vision"
COMMON = {"model": MODEL, "temperature": 0, "max_output_tokens": 200}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather at a place",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
FORCED = {"type": "function", "name": "get_weather"}
ASK_WEATHER = "What is the weather in Paris?"
OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
RED = b"\xff\0\0"
TERMINAL = {"completed": "response.completed", "incomplete": "response.incomplete"}


def png(side: int, colour: bytes) -> bytes:
    """A square picture of one colour."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = (b"\0" + colour * side) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


PICTURE = {"type": "input_image", "image_url": f"data:image/png;base64,{base64.b64encode(png(32, RED)).decode()}"}


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    """An item that is a message."""
    return {"type": "message", "role": role, "content": content, **more}


CASES: dict[str, tuple[dict[str, Any], Sequence[str], str]] = {
    # of the suite: what is sent, the types of the items that come, the status
    "a text": ({"input": [said("user", "Greet me in three words.")]}, ["message"], "completed"),
    "phases of what the assistant said": (
        {
            "input": [
                said("assistant", "I shall look the number up.", phase="commentary"),
                said("assistant", "It is seven.", phase="final_answer"),
                said("user", "Say the number again."),
            ]
        },
        ["message"],
        "completed",
    ),
    "a system message": (
        {"input": [said("system", "You are a sailor."), said("user", "Hello!")]},
        ["message"],
        "completed",
    ),
    "a tool": ({"input": [said("user", ASK_WEATHER)], "tools": [WEATHER]}, ["function_call"], "completed"),
    "a picture": (
        {"input": [said("user", [{"type": "input_text", "text": "What is in the picture?"}, PICTURE])]},
        ["message"],
        "completed",
    ),
    "several turns": (
        {"input": [said("user", "I am Ann."), said("assistant", "Hello Ann!"), said("user", "Who am I?")]},
        ["message"],
        "completed",
    ),
    # beyond it
    "a tool that is forced": (
        {"input": "Hi", "tools": [WEATHER], "tool_choice": FORCED},
        ["function_call"],
        "completed",
    ),
    "a tool with a name alone": (
        {"input": "Hi", "tools": [{"type": "function", "name": "wait"}], "tool_choice": "required"},
        ["function_call"],
        "completed",
    ),
    "allowed tools": (
        {
            "input": "Hi",
            "tools": [WEATHER],
            "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [FORCED]},
        },
        ["function_call"],
        "completed",
    ),
    "a call and its output": (
        {
            "input": [
                said("user", ASK_WEATHER),
                {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"location": "Paris"}'},
                {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
            ],
            "tools": [WEATHER],
            "tool_choice": "none",
        },
        ["message"],
        "completed",
    ),
    "a JSON object": ({"input": "Hi", "text": {"format": {"type": "json_object"}}}, ["message"], "completed"),
    "a JSON schema": (
        {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "a", "schema": OBJECT}}},
        ["message"],
        "completed",
    ),
    "log-probabilities": (
        {"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
        ["message"],
        "completed",
    ),
    "reasoning": (
        {"input": "What is 2+2?", "reasoning": {"effort": "medium", "summary": "auto"}},
        ["reasoning", "message"],
        "completed",
    ),
    "too few tokens": ({"input": "Hello!", "max_output_tokens": 2}, ["message"], "incomplete"),
    "what is told back": (
        {
            "input": "Hi",
            "instructions": "Be brief.",
            "metadata": {"a": "b"},
            "truncation": "auto",
            "store": False,
            "service_tier": "default",
            "safety_identifier": "a",
            "prompt_cache_key": "b",
            "max_tool_calls": 3,
            "parallel_tool_calls": False,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.5,
            "top_p": 0.5,
        },
        ["message"],
        "completed",
    ),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where the responses are made, by the bundled model that sees."""
    with serve(MODEL, "--dtype", "f32") as running:
        yield f"{running.base_url}/v1/responses"


@pytest.fixture(scope="module")
def types() -> Any:
    """The specification's types."""
    return import_module("openresponses_types.types")


@pytest.fixture(scope="module")
def events(types: Any) -> dict[str, type[BaseModel]]:
    """The specification's events of streams, by their `type`."""
    found = [event for name, event in vars(types).items() if name.endswith("StreamingEvent")]
    return {next(iter(event.model_fields["type"].annotation)).value: event for event in found}


def check_response(types: Any, response: Any) -> None:
    """It is one of the specification's, which lets `text.format.schema` be null only: that is taken for a slip."""
    form = response["text"]["format"]
    told = form.pop("schema", None)
    types.ResponseResource.model_validate({**response, "text": {"format": {**form, "schema": None}}})
    if form["type"] == "json_schema":
        assert told == OBJECT


def sent(url: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(url, json={**COMMON, **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, each under its own name, numbered, and the end of the stream behind them."""
    answer = httpx.post(url, json={**COMMON, **body, "stream": True}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    made = []
    for block in answer.text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        made.append(json.loads(fields["data"]))
        assert fields["event"] == made[-1]["type"]
    assert [event["sequence_number"] for event in made] == list(range(len(made)))
    return made


@pytest.mark.parametrize("name", CASES)
def test_a_response_is_as_specified(url: str, types: Any, name: str) -> None:
    body, kinds, status = CASES[name]
    response = sent(url, body)
    check_response(types, response)
    assert [item["type"] for item in response["output"]] == kinds
    assert response["status"] == status


@pytest.mark.parametrize("name", CASES)
def test_a_stream_is_as_specified(url: str, types: Any, events: dict[str, type[BaseModel]], name: str) -> None:
    body, kinds, status = CASES[name]
    made = streamed(url, body)
    for event in made:
        if "response" in event:
            check_response(types, event["response"])
        else:
            events[event["type"]].model_validate(event)
    last = made[-1]
    assert last["type"] == TERMINAL[status]
    assert [item["type"] for item in last["response"]["output"]] == kinds
    assert [event["item"] for event in made if event["type"] == "response.output_item.done"] == last["response"][
        "output"
    ]


def test_a_call_is_gone_on_from_by_its_output(url: str, types: Any) -> None:
    first = sent(url, {"input": ASK_WEATHER, "tools": [WEATHER], "tool_choice": FORCED})
    [call] = first["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "18 degrees"}
    for more in (
        {"input": [output], "previous_response_id": first["id"]},
        {"input": [said("user", "Hi"), call, output]},
    ):
        response = sent(url, {**more, "tools": [WEATHER], "tool_choice": "none"})
        check_response(types, response)
        assert response["status"] == "completed"


def test_reasoning_has_the_names_of_openais_events(url: str, events: dict[str, type[BaseModel]]) -> None:
    """Without a summary, OpenAI's clients expect `reasoning_text` in the place of the specification's `reasoning`."""
    made = streamed(url, {"input": "What is 2+2?", "reasoning": {"effort": "medium"}})
    unknown = [event for event in made if event["type"] not in events]
    assert {event["type"] for event in unknown} == {"response.reasoning_text.delta", "response.reasoning_text.done"}
    for event in unknown:
        name = event["type"].replace("reasoning_text", "reasoning")
        events[name].model_validate({**event, "type": name})


def test_what_is_not_offered_is_refused(url: str) -> None:
    compact = httpx.post(f"{url}/compact", json={"model": MODEL, "input": [said("user", "We start on Monday.")]})
    assert compact.status_code == 400
    assert "compact is not supported" in compact.json()["error"]["message"]
    assert httpx.post(f"{url}/compact", json={"input": "Hi"}).status_code == 400
    upgrade = {
        "connection": "upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "YQ==",
    }
    refused = httpx.get(url, headers=upgrade)
    assert (refused.status_code, refused.headers["allow"]) == (405, "OPTIONS, POST")
