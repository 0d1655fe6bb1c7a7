"""Official clients work unmodified against the real server and the demo model."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest
from huggingface_hub import InferenceClient

from tests.support.server_process import ServerProcess

QUESTION = "What is deep learning?"
MESSAGES = [{"role": "user", "content": QUESTION}]


@pytest.fixture(params=["v1", "v3"])
def client(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.base_url}/{request.param}", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.varies("a real server and an official client over HTTP")
def test_openai_chat_streams_what_it_answers_whole(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0, max_tokens=40)  # type: ignore[arg-type]
    stream = client.chat.completions.create(  # type: ignore[call-overload]
        model="demo",
        messages=MESSAGES,
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert whole.choices[0].message.content == text
    assert "learning" in text.lower()
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 3


def test_openai_completions_stream_what_they_answer_whole(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="demo", prompt=QUESTION, temperature=0, max_tokens=40)
    stream = client.completions.create(model="demo", prompt=QUESTION, temperature=0, max_tokens=40, stream=True)
    assert whole.choices[0].text == "".join(chunk.choices[0].text for chunk in stream)
    assert len(whole.choices[0].text) > 10


def test_openai_chat_reports_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="demo",
        messages=MESSAGES,  # type: ignore[arg-type]
        max_tokens=5,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 5
    for entry in logprobs.content:
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs)  # greedy
        assert bytes(entry.bytes or []).decode("utf-8", "replace") == entry.token


def test_openai_client_raises_its_own_error_classes(server: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="no-such-model"):
            client.chat.completions.create(model="no-such-model", messages=MESSAGES)  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError, match="temperature"):
            client.chat.completions.create(model="demo", messages=MESSAGES, temperature=7)  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError, match="max_tokens"):
            client.completions.create(model="demo", prompt="hi", max_tokens=-1)


def test_openai_client_lists_the_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_huggingface_chat_completion_works_streaming_and_not(server: ServerProcess) -> None:
    client = InferenceClient(base_url=server.base_url)
    whole = client.chat_completion(MESSAGES, max_tokens=30, temperature=0.0)
    chunks = list(client.chat_completion(MESSAGES, max_tokens=30, temperature=0.0, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert len(text) > 10


def test_huggingface_text_generation_works_on_the_tgi_routes(server: ServerProcess) -> None:
    client = InferenceClient(model=server.base_url)
    whole = client.text_generation(QUESTION, max_new_tokens=20, details=True)
    tokens = list(client.text_generation(QUESTION, max_new_tokens=20, details=True, stream=True))
    assert "".join(token.token.text for token in tokens) == whole.generated_text
    assert tokens[-1].generated_text == whole.generated_text
    assert whole.details is not None
    assert [token.id for token in whole.details.tokens] == [token.token.id for token in tokens]


def test_a_browser_sees_the_plain_text_arrive_in_pieces(server: ServerProcess) -> None:
    body = {"id": 7, "prompt": "Write a story about a garden.", "maxLength": 60}
    with httpx.stream("POST", f"{server.base_url}/api/generate-one", json=body, timeout=60) as answer:
        assert answer.status_code in (200, 206)
        pieces = list(answer.iter_text())
    assert "".join(pieces).strip()
