"""OpenAI's own client: chat, completions and responses, on both routes; test_embedding_clients.py embeds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Literal

import pytest
from pydantic import BaseModel

MESSAGES: list[Any] = [{"role": "user", "content": "Hello!"}]
GREEDY: dict[str, Any] = {"model": "demo", "temperature": 0}
PARAMETERS = {
    "type": "object",
    "properties": {"room": {"type": "string", "enum": ["kitchen", "bath"]}},
    "required": ["room"],
    "additionalProperties": False,
}


class Light(BaseModel):
    """Where a light is."""

    room: Literal["kitchen", "bath"]


@pytest.fixture(params=["v1", "v3"])
def client(request: pytest.FixtureRequest, base_url: str) -> Iterator[Any]:
    openai = import_module("openai")
    with openai.OpenAI(base_url=f"{base_url}/{request.param}", api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_streams_what_it_answers_whole(client: Any) -> None:
    whole = client.chat.completions.create(messages=MESSAGES, max_tokens=24, **GREEDY)
    assert whole.choices[0].message.content
    options = {"stream": True, "stream_options": {"include_usage": True}}
    parts = list(client.chat.completions.create(messages=MESSAGES, max_tokens=24, **options, **GREEDY))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == whole.choices[0].message.content
    assert parts[-1].usage == whole.usage
    with client.chat.completions.stream(messages=MESSAGES, max_tokens=24, **GREEDY) as stream:
        assert stream.get_final_completion().choices[0].message.content == text


def test_a_chat_calls_a_function_and_takes_its_result(client: Any) -> None:
    function = {"name": "set_light", "description": "Switch a light on", "parameters": PARAMETERS, "strict": True}
    tools: list[Any] = [{"type": "function", "function": function}]
    answer = client.chat.completions.create(
        messages=MESSAGES, tools=tools, tool_choice="required", max_tokens=80, **GREEDY
    )
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    results = []
    for call in message.tool_calls:
        assert call.function.name == "set_light"
        assert json.loads(call.function.arguments)["room"] in ("kitchen", "bath")
        results.append({"role": "tool", "tool_call_id": call.id, "content": "it is on"})
    after = client.chat.completions.create(
        messages=[*MESSAGES, message, *results], tools=tools, max_tokens=24, **GREEDY
    )
    assert after.usage.prompt_tokens > answer.usage.prompt_tokens


def test_a_chat_answers_in_a_type(client: Any) -> None:
    answer = client.chat.completions.parse(messages=MESSAGES, response_format=Light, max_tokens=60, **GREEDY)
    assert isinstance(answer.choices[0].message.parsed, Light)


def test_a_completion_streams_what_it_answers_whole_and_tells_log_probabilities(client: Any) -> None:
    asked = {"prompt": "The weather is", "max_tokens": 8, **GREEDY}
    whole = client.completions.create(logprobs=2, echo=True, **asked)
    assert whole.choices[0].text.startswith("The weather is")
    assert len(whole.choices[0].logprobs.tokens) == whole.usage.total_tokens
    parts = list(client.completions.create(stream=True, **asked))
    assert "The weather is" + "".join(part.choices[0].text for part in parts) == whole.choices[0].text


def test_a_response_streams_what_it_answers_whole_and_is_kept(client: Any) -> None:
    openai = import_module("openai")
    whole = client.responses.create(input="Hello!", max_output_tokens=24, **GREEDY)
    assert whole.output_text
    with client.responses.stream(input="Hello!", max_output_tokens=24, **GREEDY) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert stream.get_final_response().output_text == "".join(pieces) == whole.output_text
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    after = client.responses.create(input="And now?", previous_response_id=whole.id, max_output_tokens=8, **GREEDY)
    assert [item.role for item in client.responses.input_items.list(after.id, order="asc")] == [
        "user",
        "assistant",
        "user",
    ]
    client.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(whole.id)


def test_a_response_calls_a_function_and_takes_its_output(client: Any) -> None:
    tool = {"type": "function", "name": "set_light", "parameters": PARAMETERS, "strict": True}
    asked = {"tools": [tool], "max_output_tokens": 80, **GREEDY}
    made = client.responses.create(input="Light, please.", tool_choice="required", **asked)
    calls = [item for item in made.output if item.type == "function_call"]
    assert calls
    assert {json.loads(call.arguments)["room"] for call in calls} <= {"kitchen", "bath"}
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "it is on"} for call in calls]
    assert client.responses.create(input=outputs, previous_response_id=made.id, **asked).output


def test_a_response_is_in_a_type(client: Any) -> None:
    answer = client.responses.parse(input="Which light?", text_format=Light, max_output_tokens=60, **GREEDY)
    assert isinstance(answer.output_parsed, Light)


def test_errors_are_of_the_clients_own_classes(client: Any) -> None:
    openai = import_module("openai")
    refused: list[tuple[Any, str, Any, dict[str, Any]]] = [
        (openai.NotFoundError, "nobody", client.chat.completions, {"model": "nobody", "messages": MESSAGES}),
        (openai.BadRequestError, "temperature", client.completions, {"model": "demo", "prompt": "a", "temperature": 7}),
        (openai.BadRequestError, "web_search", client.responses, {"input": "a", "tools": [{"type": "web_search"}]}),
    ]
    for kind, name, calls, asked in refused:
        with pytest.raises(kind) as caught:
            calls.create(**{"model": "demo", **asked})
        assert name in str(caught.value.body)  # OVMS says it as a string, of which the client makes no message


def test_the_asynchronous_client_answers_several_calls_at_once(base_url: str) -> None:
    openai = import_module("openai")

    async def ask() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as client:
            calls = [client.chat.completions.create(messages=MESSAGES, max_tokens=12, **GREEDY) for _ in range(4)]
            return list(await asyncio.gather(*calls))

    answers = asyncio.run(ask())
    assert len({answer.choices[0].message.content for answer in answers}) == 1
    assert len({answer.id for answer in answers}) == 4
