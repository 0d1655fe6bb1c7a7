"""LangChain's classes for OpenAI, by chat and by responses, and for Anthropic against the real server."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from pydantic import BaseModel


class City(BaseModel):
    """Where somebody lives."""

    name: str


def by_chat(base_url: str) -> Any:
    """OpenAI's chat."""
    openai = import_module("langchain_openai")
    return openai.ChatOpenAI(model="demo", base_url=f"{base_url}/v1", api_key="none", temperature=0, max_tokens=60)


def by_responses(base_url: str) -> Any:
    """OpenAI's responses."""
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 60, "use_responses_api": True}
    openai = import_module("langchain_openai")
    return openai.ChatOpenAI(model="demo", base_url=f"{base_url}/v1", api_key="none", **options)


def by_messages(base_url: str) -> Any:
    """Anthropic's messages."""
    anthropic = import_module("langchain_anthropic")
    return anthropic.ChatAnthropic(model="demo", base_url=base_url, api_key="none", temperature=0, max_tokens=60)


Make = Callable[[str], Any]
WAYS = [by_chat, by_responses, by_messages]


@pytest.mark.parametrize("make", WAYS)
def test_an_answer_has_its_counts_and_streams_the_same(base_url: str, make: Make) -> None:
    model = make(base_url)
    answer = model.invoke("Hello!")
    assert answer.text
    assert answer.usage_metadata["output_tokens"] > 0
    assert "".join(part.text for part in model.stream("Hello!")) == answer.text


@pytest.mark.parametrize("make", WAYS)
def test_a_tool_is_called_and_its_result_told(base_url: str, make: Make) -> None:
    messages = import_module("langchain_core.messages")

    def get_weather(city: str) -> str:
        """Get the weather in a city."""
        return f"sunny in {city}"

    bound = make(base_url).bind_tools([get_weather], tool_choice="any")
    asked = messages.HumanMessage("What is the weather in Paris?")
    answer = bound.invoke([asked])
    assert answer.tool_calls[0]["name"] == "get_weather"
    results = [messages.ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"]) for call in answer.tool_calls]
    after = bound.invoke([asked, answer, *results])
    assert after.usage_metadata["input_tokens"] > answer.usage_metadata["input_tokens"]


@pytest.mark.parametrize("make", WAYS)
def test_an_answer_follows_a_schema(base_url: str, make: Make) -> None:
    structured = make(base_url).with_structured_output(City, method="json_schema")
    assert isinstance(structured.invoke("Where do you live?"), City)
