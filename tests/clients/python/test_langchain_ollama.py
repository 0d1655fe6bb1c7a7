"""LangChain's and LlamaIndex's classes for Ollama against the real server."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

import pytest
from pydantic import BaseModel

OPTIONS: dict[str, Any] = {"temperature": 0, "num_predict": 60}


class City(BaseModel):
    """Where somebody lives."""

    name: str


@pytest.fixture
def langchain(base_url: str) -> Any:
    package = import_module("langchain_ollama")
    return package.ChatOllama(model="demo", base_url=base_url, validate_model_on_init=True, **OPTIONS)


def test_langchain_gets_an_answer_with_its_counts(langchain: Any) -> None:
    answer = langchain.invoke("Hello!")
    assert answer.content
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["done_reason"] in ("stop", "length")
    assert "".join(part.content for part in langchain.stream("Hello!")) == answer.content
    assert asyncio.run(langchain.ainvoke("Hello!")).content == answer.content


def test_langchain_calls_a_tool_and_tells_its_result(langchain: Any) -> None:
    messages = import_module("langchain_core.messages")

    def get_weather(city: str) -> str:
        """Get the weather in a city."""
        return f"sunny in {city}"

    bound = langchain.bind_tools([get_weather])
    asked = messages.HumanMessage("What is the weather in Paris?")
    answer = bound.invoke([asked])
    [call] = answer.tool_calls
    assert call["name"] == "get_weather"
    result = messages.ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
    after = bound.invoke([asked, answer, result])
    assert after.usage_metadata["input_tokens"] > answer.usage_metadata["input_tokens"]
    assert after.content or after.tool_calls


def test_langchain_gets_what_follows_a_schema(langchain: Any) -> None:
    structured = langchain.with_structured_output(City, method="json_schema")
    assert isinstance(structured.invoke("Where do you live?"), City)


def test_langchain_gets_the_reasoning_apart(base_url: str) -> None:
    package = import_module("langchain_ollama")
    model = package.ChatOllama(model="demo", base_url=base_url, reasoning=True, **OPTIONS)
    assert model.invoke("What is 2+2?").additional_kwargs["reasoning_content"]


def test_langchain_refuses_a_model_that_is_not_served(base_url: str) -> None:
    package = import_module("langchain_ollama")
    with pytest.raises(ValueError, match="nobody"):
        package.ChatOllama(model="nobody", base_url=base_url, validate_model_on_init=True)


def test_llama_index_gets_an_answer_whole_and_streamed(base_url: str) -> None:
    package = import_module("llama_index.llms.ollama")
    options = {"num_predict": 24}
    model = package.Ollama(model="demo", base_url=base_url, temperature=0, additional_kwargs=options)
    whole = str(model.complete("Hello!"))
    assert whole
    assert "".join(part.delta or "" for part in model.stream_complete("Hello!")) == whole
