"""LiteLLM's own calls of the Responses API, of chat, Anthropic and Ollama, of embeddings and rerank, unmodified."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from tests.clients.conftest import PoolingServer

MODEL = "default"
MESSAGES = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it asks for a list of prices when it is imported, and waits where there is no internet."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def test_it_answers_and_streams(base_url: str) -> None:
    litellm = import_module("litellm")
    options = {"model": f"openai/{MODEL}", "max_output_tokens": 20, "api_base": f"{base_url}/v1", "api_key": "none"}
    whole = litellm.responses(input="Hello!", temperature=0, **options)
    assert whole.output[0].content[0].text
    events = list(litellm.responses(input="Hello!", temperature=0, stream=True, **options))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output[0].content[0].text
    after = litellm.responses(input="And now?", previous_response_id=whole.id, **options)
    assert after.output[0].content[0].text


def test_it_calls_a_tool(base_url: str) -> None:
    litellm = import_module("litellm")
    tool = {
        "type": "function",
        "name": "set_light",
        "parameters": {"type": "object", "properties": {"room": {"enum": ["kitchen", "bath"]}}, "required": ["room"]},
    }
    made = litellm.responses(
        model=f"openai/{MODEL}", input="Light, please.", tools=[tool], tool_choice="required", api_base=f"{base_url}/v1",
        api_key="none",
    )  # fmt: skip
    assert made.output[0].name == "set_light"


@pytest.mark.parametrize(("provider", "path"), [("openai", "/v1"), ("anthropic", ""), ("ollama_chat", "")])
def test_it_speaks_other_apis_whole_and_streamed(base_url: str, provider: str, path: str) -> None:
    litellm = import_module("litellm")
    options: dict[str, Any] = {
        "model": f"{provider}/demo",
        "messages": MESSAGES,
        "api_base": f"{base_url}{path}",
        "api_key": "none",
        "max_tokens": 20,
        "temperature": 0,
    }
    whole = litellm.completion(**options)
    assert whole.choices[0].message.content
    assert whole.usage.completion_tokens > 0
    parts = litellm.completion(stream=True, **options)
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content


@pytest.mark.parametrize(("provider", "path"), [("openai", "/v1"), ("ollama", "")])
def test_it_embeds(pooling: PoolingServer, provider: str, path: str) -> None:
    litellm = import_module("litellm")
    place = {"api_base": f"{pooling.base_url}{path}", "api_key": "none"}
    made = litellm.embedding(f"{provider}/embedder", input=pooling.texts, **place)
    rows = [item["embedding"] for item in made.data]
    np.testing.assert_allclose(np.array(rows), np.array(pooling.vectors), atol=1e-4)


@pytest.mark.parametrize("provider", ["cohere", "jina_ai", "hosted_vllm"])
def test_it_ranks(pooling: PoolingServer, provider: str) -> None:
    litellm = import_module("litellm")
    documents = ["people", "oil is made of water", "the way of water"]
    place = {"api_base": pooling.base_url, "api_key": "none"}
    ranked = litellm.rerank(f"{provider}/scorer", query="what is oil?", documents=documents, top_n=2, **place)
    scores = [one["relevance_score"] for one in ranked.results]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
