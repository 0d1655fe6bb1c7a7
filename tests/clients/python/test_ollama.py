"""Ollama's own client: prompts and conversations whole and streamed, tools, schemas, reasoning, lists, errors."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.clients.conftest import NAMES

TOLD = [{"role": "user", "content": "What is the weather in Paris?"}]
GREEDY = {"temperature": 0, "num_predict": 60}


class Light(BaseModel):
    """Where a light is."""

    room: Literal["kitchen", "bath"]


def get_weather(city: str) -> str:
    """Get the weather in a city.

    Args:
        city: The name of the city
    """
    return f"sunny in {city}"


@pytest.fixture
def client(base_url: str) -> Any:
    return import_module("ollama").Client(host=base_url)


def test_a_prompt_streams_what_it_answers_whole(client: Any) -> None:
    for more in ({}, {"raw": True}, {"system": "Be brief."}):
        whole = client.generate("demo", "Hello!", options=GREEDY, **more)
        assert whole.response
        *_, last = parts = list(client.generate("demo", "Hello!", options=GREEDY, stream=True, **more))
        assert "".join(part.response for part in parts) == whole.response
        assert last.done
        assert (last.eval_count, last.done_reason) == (whole.eval_count, whole.done_reason)
        assert last.total_duration > last.eval_duration > 0


def test_a_conversation_streams_what_it_answers_whole(client: Any) -> None:
    for name in ("demo", "demo:latest"):
        whole = client.chat(name, TOLD, options=GREEDY)
        parts = client.chat(name, TOLD, options=GREEDY, stream=True, keep_alive="5m")
        assert "".join(part.message.content for part in parts) == whole.message.content


def test_a_function_is_called_and_its_result_taken(client: Any) -> None:
    answer = client.chat("demo", TOLD, tools=[get_weather], options=GREEDY)
    [call] = answer.message.tool_calls
    assert (call.function.name, list(call.function.arguments)) == ("get_weather", ["city"])
    result = {"role": "tool", "tool_name": "get_weather", "content": get_weather(**call.function.arguments)}
    after = client.chat("demo", [*TOLD, answer.message, result], tools=[get_weather], options=GREEDY)
    assert after.prompt_eval_count > answer.prompt_eval_count
    assert after.message.content or after.message.tool_calls


def test_answers_follow_forms_and_reasoning_stands_apart(client: Any) -> None:
    form = client.chat("demo", TOLD, format=Light.model_json_schema(), options=GREEDY)
    Light.model_validate_json(form.message.content)
    thought = client.chat("demo", TOLD, think=True, options=GREEDY)
    assert thought.message.thinking


def test_lists_and_descriptions(client: Any) -> None:
    listed = [one.model for one in client.list().models]
    assert listed == [f"{name}:latest" for name in NAMES]
    assert [one.model for one in client.ps().models] == listed
    for name in listed:
        shown = client.show(name)
        assert "completion" in shown.capabilities
        assert shown.modelinfo


def test_errors(client: Any) -> None:
    ollama = import_module("ollama")
    with pytest.raises(ollama.ResponseError, match="nobody") as caught:
        client.chat("nobody", TOLD)
    assert caught.value.status_code == 404
    for refused in (client.pull, client.push, client.delete):
        with pytest.raises(ollama.ResponseError, match="not offered here"):
            refused("nobody")
    with pytest.raises(ollama.ResponseError, match="does not embed"):
        client.embed("demo", "Hello!")


def test_the_asynchronous_client_streams(base_url: str, client: Any) -> None:
    whole = client.chat("demo", TOLD, options=GREEDY).message.content

    async def ask() -> str:
        stream = (
            await import_module("ollama").AsyncClient(host=base_url).chat("demo", TOLD, options=GREEDY, stream=True)
        )
        return "".join([part.message.content async for part in stream])

    assert asyncio.run(ask()) == whole
