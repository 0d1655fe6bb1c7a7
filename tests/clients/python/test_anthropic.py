"""Anthropic's own client: messages whole and streamed, tools and their results, thinking, counted tokens, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.clients.conftest import NAMES

QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
GREEDY: dict[str, Any] = {"model": "demo", "max_tokens": 80, "extra_body": {"temperature": 0}}


class Light(BaseModel):
    """Where a light is."""

    room: Literal["kitchen", "bath"]


@pytest.fixture
def client(base_url: str) -> Iterator[Any]:
    anthropic = import_module("anthropic")
    with anthropic.Anthropic(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


def content(message: Any) -> list[Any]:
    """The blocks of a message without their ids, which differ."""
    return [block.model_dump(exclude={"id"}, exclude_none=True) for block in message.content]


@pytest.mark.parametrize("more", [{}, {"tools": [WEATHER], "tool_choice": {"type": "any"}}])
def test_a_message_streams_what_it_answers_whole(client: Any, more: Any) -> None:
    whole = client.messages.create(messages=QUESTION, system="Be brief.", **GREEDY, **more)
    with client.messages.stream(messages=QUESTION, system="Be brief.", **GREEDY, **more) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert content(message) == content(whole)
    assert (message.stop_reason, message.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert text == "".join(block.text for block in whole.content if block.type == "text")


def test_the_raw_events_are_those_of_the_api(client: Any) -> None:
    events = [event.type for event in client.messages.create(messages=QUESTION, stream=True, **GREEDY)]
    assert events[:2] == ["message_start", "content_block_start"]
    assert events[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "content_block_delta" in events


def test_a_tool_is_called_and_its_result_taken(client: Any) -> None:
    answer = client.messages.create(messages=QUESTION, tools=[WEATHER], **GREEDY)
    [use] = [block for block in answer.content if block.type == "tool_use"]
    assert (answer.stop_reason, use.name, list(use.input)) == ("tool_use", "get_weather", ["city"])
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny, 21 degrees"}
    told = [*QUESTION, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    after = client.messages.create(messages=told, tools=[WEATHER], **GREEDY)
    assert "sunny" in after.content[0].text


def test_the_clients_tool_runner_goes_round_by_itself(client: Any) -> None:
    asked: list[str] = []

    def get_weather(city: str) -> str:
        """Get the weather in a city

        Args:
            city: The city
        """
        asked.append(city)
        return "sunny, 21 degrees"

    tools = [import_module("anthropic").beta_tool(get_weather)]
    runner = client.beta.messages.tool_runner(messages=QUESTION, tools=tools, max_iterations=3, **GREEDY)
    assert "sunny" in runner.until_done().content[0].text
    assert asked == ["Paris"]


def test_thinking_and_typed_answers(client: Any) -> None:
    asked = {**GREEDY, "max_tokens": 300, "messages": [{"role": "user", "content": "What is 2+2?"}]}
    assert client.messages.create(thinking={"type": "adaptive"}, **asked).content[0].type == "thinking"
    typed = client.messages.parse(output_format=Light, **asked)
    assert isinstance(typed.parsed_output, Light)


def test_tokens_are_counted_as_they_are_charged(client: Any) -> None:
    for more in ({}, {"tools": [WEATHER]}, {"system": "Be brief."}):
        counted = client.messages.count_tokens(model="demo", messages=QUESTION, **more)
        usage = client.messages.create(messages=QUESTION, **{**GREEDY, "max_tokens": 1}, **more).usage
        assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_models_are_listed_and_errors_are_of_the_clients_own_classes(client: Any) -> None:
    anthropic = import_module("anthropic")
    assert [model.id for model in client.models.list()] == list(NAMES)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(messages=QUESTION, **{**GREEDY, "model": "nobody"})
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(messages=QUESTION, **{**GREEDY, "max_tokens": -1})


def test_the_asynchronous_client_streams(base_url: str) -> None:
    anthropic = import_module("anthropic")

    async def ask() -> tuple[str, Any]:
        async with (
            anthropic.AsyncAnthropic(base_url=base_url, api_key="none", max_retries=0) as client,
            client.messages.stream(messages=QUESTION, **GREEDY) as stream,
        ):
            text = "".join([piece async for piece in stream.text_stream])
            return text, await stream.get_final_message()

    text, message = asyncio.run(ask())
    assert message.content[0].text == text
