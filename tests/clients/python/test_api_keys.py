"""A server that asks for a key, and each official client with it and with another one, sent in the client's own way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

from tests.support.server_process import serve

KEY = "correct horse"
HELLO = [{"role": "user", "content": "Hello!"}]

Ask = Callable[[str, str], Any]


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    """Where the server listens."""
    with serve("--name", "demo", environ={"DRAGOMAN_API_KEY": KEY}) as running:
        yield running.base_url


def by_openai(base_url: str, key: str) -> Any:
    """Authorization: Bearer."""
    with import_module("openai").OpenAI(base_url=f"{base_url}/v1", api_key=key, max_retries=0) as client:
        return client.chat.completions.create(model="demo", messages=HELLO, max_tokens=4)


def by_anthropic(base_url: str, key: str) -> Any:
    """x-api-key."""
    with import_module("anthropic").Anthropic(base_url=base_url, api_key=key, max_retries=0) as client:
        return client.messages.create(model="demo", messages=HELLO, max_tokens=4)


def by_anthropics_token(base_url: str, key: str) -> Any:
    """Authorization: Bearer."""
    with import_module("anthropic").Anthropic(base_url=base_url, auth_token=key, api_key=None, max_retries=0) as client:
        return client.messages.create(model="demo", messages=HELLO, max_tokens=4)


def by_ollama(base_url: str, key: str) -> Any:
    """A header that the caller gives, as Ollama itself asks for no key."""
    client = import_module("ollama").Client(host=base_url, headers={"Authorization": f"Bearer {key}"})
    return client.chat("demo", HELLO, options={"num_predict": 4})


def by_hugging_face(base_url: str, key: str) -> Any:
    """Authorization: Bearer."""
    client = import_module("huggingface_hub").InferenceClient(base_url=base_url, token=key)
    return client.chat_completion(HELLO, max_tokens=4)


def by_cohere(base_url: str, key: str) -> Any:
    """Authorization: Bearer."""
    cohere = import_module("cohere")
    client = cohere.ClientV2(api_key=key, base_url=base_url)
    with pytest.raises(
        cohere.UnprocessableEntityError, match="does not score"
    ) as caught:  # which only the right key is told
        client.rerank(model="demo", query="a", documents=["b"])
    return caught.value


WAYS = [
    (by_openai, "openai", "AuthenticationError"),
    (by_anthropic, "anthropic", "AuthenticationError"),
    (by_anthropics_token, "anthropic", "AuthenticationError"),
    (by_ollama, "ollama", "ResponseError"),
    (by_hugging_face, "huggingface_hub.errors", "HfHubHTTPError"),
    (by_cohere, "cohere", "UnauthorizedError"),
]


@pytest.mark.parametrize(("ask", "package", "refusal"), WAYS)
def test_the_right_key_is_taken_and_another_refused(locked: str, ask: Ask, package: str, refusal: str) -> None:
    assert ask(locked, KEY)
    with pytest.raises(getattr(import_module(package), refusal)) as caught:
        ask(locked, "battery staple")
    assert "401" in str(caught.value) or getattr(caught.value, "status_code", None) == 401
