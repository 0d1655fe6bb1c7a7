"""Ollama's Python client over real HTTP: answers, streams, errors before and inside a stream, lists, embeddings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx
import msgspec
import numpy as np
import ollama
import pytest

from dragoman.errors import CapacityError, EngineFailed, InvalidParameter
from dragoman.server.app import ServerConfig
from dragoman.server.pooling.base import EmbedRequest, Numbers, Pooled, PoolingFacts, PoolingKind, Truncation
from dragoman.types import ToolCallDelta
from tests.dialects.ollama_calls import able_profile
from tests.support.fake_service import FakeService, Gate, Script
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

MESSAGES = [{"role": "user", "content": "Say it"}]
WORDS = [" Deep", " learning", " is", " fun", ".", " 🍊"]
WHOLE = "".join(WORDS)
UNKNOWN = ["other", "other:latest", "fake:7b"]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    with running_server(dialects=real_dialects(abilities=able_profile().abilities)) as server:
        yield server


@contextmanager
def client_of(server: RunningServer, **options: Any) -> Iterator[ollama.Client]:
    """The client, closed at the end."""
    client = ollama.Client(host=server.url, **options)
    try:
        yield client
    finally:
        client._client.close()


@pytest.fixture
def official(server: RunningServer) -> Iterator[ollama.Client]:
    with client_of(server) as client:
        yield client


def check_end(answer: ollama.GenerateResponse | ollama.ChatResponse, num_tokens: int, reason: str) -> None:
    """The last object has counts, and durations that add up."""
    assert (answer.done, answer.done_reason, answer.eval_count) == (True, reason, num_tokens)
    assert answer.prompt_eval_count
    parts = (answer.load_duration, answer.prompt_eval_duration, answer.eval_duration)
    assert all(isinstance(part, int) and part >= 0 for part in parts)
    assert answer.total_duration == pytest.approx(sum(part or 0 for part in parts), abs=2)
    assert answer.total_duration is not None
    assert 0 < answer.total_duration < 20e9
    assert answer.created_at is not None
    made = datetime.fromisoformat(answer.created_at)
    assert abs((datetime.now(UTC) - made).total_seconds()) < 60


@table("name", ["fake", "fake:latest", "nickname", "nickname:latest"])
def test_a_prompt_is_answered_under_every_name(name: str, official: ollama.Client) -> None:
    answer = official.generate(name, "Say it")
    assert (answer.model, answer.response) == (name, WHOLE)
    check_end(answer, len(WORDS) + 1, "stop")


def test_a_prompt_is_answered_line_by_line(official: ollama.Client) -> None:
    *parts, last = official.generate("fake", "Say it", stream=True, options={"num_predict": 3})
    assert [part.response for part in parts] == WORDS[:3]
    assert not any(part.done for part in parts)
    assert last.response == ""
    check_end(last, 3, "length")


def test_a_conversation_is_answered_whole_and_line_by_line(official: ollama.Client) -> None:
    answer = official.chat("fake", MESSAGES)
    assert (answer.message.role, answer.message.content) == ("assistant", WHOLE)
    check_end(answer, len(WORDS) + 1, "stop")
    *parts, last = official.chat("fake", MESSAGES, stream=True)
    assert [part.message.content for part in parts] == WORDS
    check_end(last, len(WORDS) + 1, "stop")


def test_the_asynchronous_client_gets_the_same(server: RunningServer) -> None:
    async def ask() -> tuple[str, list[str]]:
        client = ollama.AsyncClient(host=server.url)
        whole = await client.chat("fake", MESSAGES)
        stream = await client.generate("fake", "Say it", stream=True)
        said = [part.response or "" async for part in stream]
        await client._client.aclose()
        return whole.message.content or "", said

    assert asyncio.run(ask()) == (WHOLE, [*WORDS, ""])


def test_lines_come_as_they_are_made(server: RunningServer) -> None:
    body = {"model": "fake", "prompt": "Say it"}
    with httpx.stream("POST", f"{server.url}/api/generate", json=body) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in answer.iter_lines()]
    assert [line["done"] for line in lines] == [False] * len(WORDS) + [True]


def test_logprobs_are_told_per_token(official: ollama.Client) -> None:
    answer = official.generate("fake", "Say it", logprobs=True, top_logprobs=2)
    assert answer.logprobs is not None
    assert [one.token for one in answer.logprobs] == WORDS  # not the token that ends the answer
    assert [len(one.top_logprobs or ()) for one in answer.logprobs] == [2] * len(WORDS)
    streamed = [
        one.token for part in official.chat("fake", MESSAGES, stream=True, logprobs=True) for one in part.logprobs or ()
    ]
    assert streamed == WORDS


def test_context_is_told_and_taken(official: ollama.Client, server: RunningServer) -> None:
    first = official.generate("fake", "Say it")
    assert first.context is not None
    assert len(first.context) == (first.prompt_eval_count or 0) + (first.eval_count or 0)
    official.generate("fake", "And now", context=first.context)
    prompt: Any = server.service.requests[-1].prompt
    assert prompt.before_ids == tuple(first.context)
    assert official.generate("fake", "Say it", raw=True).context is None


@table("keep_alive", [None, "10m", 0, -1])
def test_without_a_prompt_the_model_is_said_to_be_there(keep_alive: Any, official: ollama.Client) -> None:
    reason = "unload" if keep_alive == 0 else "load"
    generated, chatted = (
        official.generate("fake", keep_alive=keep_alive),
        official.chat("fake", keep_alive=keep_alive),
    )
    assert (generated.done, generated.done_reason, generated.response) == (True, reason, "")
    assert (chatted.done, chatted.done_reason, chatted.message.content) == (True, reason, "")
    assert official.generate("fake", "Say it").response == WHOLE  # nothing was unloaded


# --- tool calls -------------------------------------------------------------------------------------------------------


class CallingService(FakeService):
    """Thinks, says something and calls two tools, in pieces."""

    async def stream(self, request: Any) -> Any:
        """The scripted events, with these in the place of what some say."""
        changes: list[dict[str, Any]] = [
            {"reasoning": "hm", "content": ""},
            {"content": "Wait"},
            {"content": "", "tool_calls": (ToolCallDelta(0, "call_a", "add", '{"a": 1,'),)},
            {
                "content": "",
                "tool_calls": (ToolCallDelta(0, arguments=' "b": 2}'), ToolCallDelta(1, "call_b", "now", "")),
            },
            *({"content": ""} for _ in range(3)),
        ]
        async for event in super().stream(request):
            yield msgspec.structs.replace(event, **changes.pop(0))


@pytest.fixture
def calling() -> Iterator[RunningServer]:
    server = RunningServer(dialects=real_dialects(abilities=able_profile().abilities))
    server.service = CallingService()
    server.start()
    yield server
    server.http.stop()
    server.join()


def test_tool_calls_come_whole_with_objects_and_thinking_apart(calling: RunningServer) -> None:
    with client_of(calling) as client:
        *parts, last = client.chat("fake", MESSAGES, stream=True)
    said = [part.message for part in parts]
    assert [one.thinking for one in said if one.thinking] == ["hm"]
    assert [one.content for one in said if one.content] == ["Wait"]
    calls = [[(c.function.name, c.function.arguments) for c in one.tool_calls] for one in said if one.tool_calls]
    assert calls == [[("add", {"a": 1, "b": 2})], [("now", {})]]
    assert last.done_reason == "stop"
    raw = httpx.post(f"{calling.url}/api/chat", json={"model": "fake", "messages": MESSAGES}).text
    told = [one for line in raw.splitlines() for one in json.loads(line)["message"].get("tool_calls", ())]
    assert [(one["id"], one["function"]["index"]) for one in told] == [("call_a", 0), ("call_b", 1)]


# --- errors -----------------------------------------------------------------------------------------------------------


@table("name", UNKNOWN)
def test_a_missing_model_is_said_to_be_missing(name: str, official: ollama.Client) -> None:
    for ask in (official.generate, official.chat, official.show, official.embed):
        with pytest.raises(ollama.ResponseError) as caught:
            ask(name)
        assert (caught.value.status_code, caught.value.error) == (404, f"model '{name}' not found")


def test_a_missing_model_is_said_to_be_missing_before_a_stream(official: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="model 'other' not found"):
        list(official.chat("other", MESSAGES, stream=True))


def test_a_bad_option_is_told_by_name(official: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        official.generate("fake", "Say it", options={"top_p": 3})
    assert caught.value.status_code == 400
    assert caught.value.error == "options.top_p must be between 0.0 and 1.0, got 3.0"


def test_an_error_inside_a_stream_is_its_last_line(official: ollama.Client, server: RunningServer) -> None:
    gate = Gate()
    server.service.script = Script(gates={2: gate}, failures={2: EngineFailed("the engine failed")})
    stream = official.generate("fake", "Say it", stream=True)
    assert [next(stream).response for _ in range(2)] == WORDS[:2]
    gate.open()
    with pytest.raises(ollama.ResponseError, match="the engine failed"):
        next(stream)


def test_an_error_before_anything_was_sent_has_a_status(official: ollama.Client, server: RunningServer) -> None:
    server.service.script = Script(failures={0: EngineFailed("the engine failed")})
    with pytest.raises(ollama.ResponseError) as caught:
        official.chat("fake", MESSAGES)
    assert (caught.value.status_code, caught.value.error) == (500, "the engine failed")


def test_a_missing_key_is_told_in_ollamas_shape() -> None:
    config = ServerConfig(api_keys=frozenset({"secret"}))
    with running_server(config, dialects=real_dialects()) as server, client_of(server) as client:
        for ask in (client.list, partial(client.generate, "fake", "x")):
            with pytest.raises(ollama.ResponseError) as caught:
                ask()
            assert caught.value.status_code == 401
        with client_of(server, headers={"Authorization": "Bearer secret"}) as keyed:
            assert keyed.generate("fake", "Say it").response == WHOLE


@table(
    ("verb", "ask"),
    [
        ("pull", lambda one: one.pull("llama3")),
        ("pull", lambda one: list(one.pull("llama3", stream=True))),
        ("push", lambda one: one.push("llama3")),
        ("create", lambda one: one.create("mine", from_="fake")),
        ("copy", lambda one: one.copy("fake", "mine")),
        ("delete", lambda one: one.delete("fake")),
    ],
)
def test_what_is_not_offered_says_so_by_name(verb: str, ask: Any, official: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        ask(official)
    assert caught.value.status_code == 400
    assert caught.value.error.startswith(f"{verb} is not offered here: ")


def test_unknown_paths_name_the_nearest_one(server: RunningServer) -> None:
    answer = httpx.post(f"{server.url}/api/generated", json={})
    assert answer.status_code == 404
    assert "the nearest one is /api/generate," in answer.json()["error"]
    assert httpx.get(f"{server.url}/api/chat").json()["error"]
    assert httpx.get(f"{server.url}/api/chat").status_code == 405


def test_what_had_no_effect_is_named(server: RunningServer) -> None:
    body = {"model": "fake", "prompt": "x", "stream": False, "options": {"num_ctx": 8}, "keep_alive": 5, "odd": 1}
    answer = httpx.post(f"{server.url}/api/generate", json=body)
    assert answer.headers["x-dragoman-ignored"] == "keep_alive,odd,options.num_ctx"


def test_the_plain_text_service_answers_as_before(server: RunningServer) -> None:
    answer = httpx.post(f"{server.url}/api/generate-one", json={"id": 1, "prompt": "Say it", "maxLength": 2})
    assert (answer.status_code, answer.text) == (206, "".join(WORDS[:2]))


# --- models -----------------------------------------------------------------------------------------------------------


def test_served_models_are_listed_and_loaded(official: ollama.Client, server: RunningServer) -> None:
    assert [one.model for one in official.list().models] == ["fake:latest", "nickname:latest"]
    loaded = official.ps().models
    assert [(one.name, one.context_length) for one in loaded] == [("fake:latest", 64), ("nickname:latest", 64)]
    assert httpx.head(server.url).status_code == 200  # how clients see that a server is there
    assert httpx.get(f"{server.url}/api/version").json()["version"]


# --- embeddings -------------------------------------------------------------------------------------------------------


class FakeEmbedder:
    """Embeds a text as its length."""

    facts = PoolingFacts(
        kind=PoolingKind.EMBED,
        max_tokens=8,
        vocab_size=10,
        dimensions=2,
        pooling="mean",
        is_normalized=True,
        similarity="cosine",
        prompts={},
        default_prompt_name=None,
        activation="",
    )

    def __init__(self) -> None:
        self.requests: list[EmbedRequest] = []

    async def embed(self, request: EmbedRequest) -> Pooled[Numbers]:
        """A vector for each text."""
        self.requests.append(request)
        if request.dimensions is not None and request.dimensions > 2:
            message = f"dimensions must be between 1 and 2, got {request.dimensions}"
            raise InvalidParameter(message, param="dimensions")
        sizes = [len(text) for text in request.texts]
        for index, size in enumerate(sizes):
            if size > 8 and request.truncation is Truncation.NONE:
                raise CapacityError(f"text {index} has {size} tokens, allowed: at most 8", param="texts")
        rows = np.array([[size, 0.5] for size in sizes], dtype=np.float32)[:, : request.dimensions]
        return Pooled(np.ascontiguousarray(rows), tuple(sizes))


@pytest.fixture
def embedding() -> Iterator[tuple[ollama.Client, FakeEmbedder]]:
    service = FakeEmbedder()
    with running_server(dialects=real_dialects(pooling=service)) as server, client_of(server) as client:
        yield client, service


def test_texts_are_embedded(embedding: tuple[ollama.Client, FakeEmbedder]) -> None:
    client, service = embedding
    answer = client.embed("fake", ["a", "bcd"])
    assert [list(row) for row in answer.embeddings] == [[1.0, 0.5], [3.0, 0.5]]
    assert (answer.model, answer.prompt_eval_count) == ("fake", 4)
    assert answer.total_duration is not None
    assert answer.load_duration is not None
    assert answer.total_duration >= answer.load_duration >= 0
    assert [list(row) for row in client.embed("fake", "ab", dimensions=1).embeddings] == [[2.0]]
    assert client.embed("fake", []).embeddings == []
    assert (service.requests[0].truncation, service.requests[0].normalize) == (Truncation.RIGHT, True)
    assert list(client.embeddings("fake", "abcd").embedding) == [4.0, 0.5]
    assert list(client.embeddings("fake", "").embedding) == []


def test_a_bad_text_is_told_by_its_place(embedding: tuple[ollama.Client, FakeEmbedder]) -> None:
    client, _ = embedding
    with pytest.raises(ollama.ResponseError, match=r"^input\[1\] has 9 tokens, allowed: at most 8"):
        client.embed("fake", ["a", "b" * 9], truncate=False)
    with pytest.raises(ollama.ResponseError, match="dimensions must be between 1 and 2, got 5"):
        client.embed("fake", "a", dimensions=5)


def test_a_model_that_generates_says_that_it_does_not_embed(official: ollama.Client) -> None:
    for ask in (official.embed, official.embeddings):
        with pytest.raises(ollama.ResponseError) as caught:
            ask("fake", "x")
        assert caught.value.status_code == 400
        assert caught.value.error == "model fake generates text and does not embed"
