"""The real dialects behind the real server, asked by the clients that people use; only the service is scripted."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import openai
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import OverloadedError

from dragoman.errors import EngineFailed, Overloaded
from dragoman.server.app import ServerConfig
from tests.support.fake_service import Gate, Script
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

TEXT = " Deep learning is fun. 🍊"


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    """One server with all real dialects."""
    with running_server(dialects=real_dialects()) as server:
        yield server


@pytest.fixture(params=["v1", "v3"])
def openai_client(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[openai.OpenAI]:
    """openai-python on either prefix."""
    with openai.OpenAI(base_url=f"{server.url}/{request.param}", api_key="none", max_retries=0) as client:
        yield client


class TestOpenAi:
    def test_whole_chats_and_completions(self, openai_client: openai.OpenAI) -> None:
        chat = openai_client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}])
        assert chat.choices[0].message.content == TEXT
        assert openai_client.completions.create(model="fake", prompt="hi", max_tokens=50).choices[0].text == TEXT

    def test_streamed_chats_and_completions(self, openai_client: openai.OpenAI) -> None:
        chunks = list(
            openai_client.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": "hi"}], stream=True
            )
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
        assert chunks[-1].choices[0].finish_reason == "stop"
        parts = openai_client.completions.create(model="fake", prompt="hi", max_tokens=50, stream=True)
        assert "".join(part.choices[0].text for part in parts) == TEXT

    def test_errors_have_their_classes(self, openai_client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError):
            openai_client.completions.create(model="nobody", prompt="hi")
        with pytest.raises(openai.BadRequestError):
            openai_client.completions.create(model="fake", prompt="hi", temperature=-1)
        assert [model.id for model in openai_client.models.list()] == ["fake", "nickname"]

    def test_a_failure_in_a_stream_is_raised_by_the_client(
        self, server: RunningServer, openai_client: openai.OpenAI
    ) -> None:
        gate = Gate()
        server.service.script = Script(gates={2: gate}, failures={2: EngineFailed("the step failed")})
        with openai_client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "hi"}], stream=True
        ) as stream:
            chunks = iter(stream)
            assert next(chunks).choices[0].delta.content == " Deep"
            gate.open()
            # OVMS's errors are strings, where this client has only words of its own
            with pytest.raises(openai.APIError, match=r"the step failed|error occurred during streaming"):
                list(chunks)

    def test_closing_a_stream_aborts_the_generation(self, server: RunningServer, openai_client: openai.OpenAI) -> None:
        server.service.script = Script(gates={2: Gate()})
        headers = {"x-request-id": f"left-{openai_client.base_url.path[:3].strip('/')}"}
        stream = openai_client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "hi"}], stream=True, extra_headers=headers
        )
        next(iter(stream))
        stream.close()
        server.service.journal.wait_for(lambda lines: f"abort {headers['x-request-id']}" in lines)


class TestLmi:
    def test_whole_and_streamed_answers(self, client: httpx.Client) -> None:
        body = {"inputs": "What is Deep Learning?"}
        assert client.post("/invocations", json=body).json() == {"generated_text": TEXT}
        streamed = client.post("/invocations", json={**body, "stream": True})
        assert streamed.headers["content-type"] == "application/jsonlines"
        lines = [json.loads(line) for line in streamed.text.splitlines()]
        assert "".join(line["token"]["text"] for line in lines) == TEXT == lines[-1]["generated_text"]

    def test_ignored_parameters_are_reported(self, client: httpx.Client) -> None:
        answer = client.post("/invocations", json={"inputs": "x", "parameters": {"mood": "good"}})
        assert answer.headers["x-dragoman-ignored"] == "mood"

    def test_a_failure_in_a_stream_is_its_last_line(self, server: RunningServer, client: httpx.Client) -> None:
        gate = Gate()
        server.service.script = Script(gates={2: gate}, failures={2: EngineFailed("the step failed")})
        with client.stream("POST", "/invocations", json={"inputs": "x", "stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            gate.open()
            last = json.loads(list(lines)[-1])
        assert (last["details"]["finish_reason"], last["error"], last["code"]) == ("error", "the step failed", 424)

    def test_chat_and_completion_bodies_are_understood(self, client: httpx.Client) -> None:
        chat = client.post("/invocations", json={"messages": [{"role": "user", "content": "hi"}]}).json()
        assert chat["choices"][0]["message"]["content"] == TEXT
        completion = client.post("/predictions/model", json={"prompt": "hi", "max_tokens": 50}).json()
        assert completion["choices"][0]["text"] == TEXT

    def test_a_full_queue_is_503_with_lmis_type(self, server: RunningServer, client: httpx.Client) -> None:
        server.service.script = Script(failures={0: Overloaded("Worker queue capacity exceeded for model: fake")})
        answer = client.post("/invocations", json={"inputs": "x"})
        assert (answer.status_code, answer.json()["type"]) == (503, "WlmCapacityException")
        assert answer.headers["retry-after"] == "1"


class TestTgi:
    def test_its_client_generates_and_streams(self, server: RunningServer) -> None:
        client = InferenceClient(server.url)
        assert client.text_generation("hi", max_new_tokens=50) == TEXT
        assert "".join(client.text_generation("hi", max_new_tokens=50, stream=True)) == TEXT

    def test_overload_is_what_its_client_calls_overloaded(self, server: RunningServer) -> None:
        server.service.script = Script(failures={0: Overloaded("busy")})
        with pytest.raises(OverloadedError):
            InferenceClient(server.url).text_generation("hi", max_new_tokens=50)

    def test_its_client_chats_without_naming_a_model(self, server: RunningServer) -> None:
        client = InferenceClient(base_url=server.url)
        answer = client.chat_completion([{"role": "user", "content": "hi"}])
        assert answer.choices[0].message.content == TEXT


KEYED = ServerConfig(api_keys=frozenset({"secret"}))
SHAPES = [
    ("/v1/nothing", {"error"}, "invalid_request_error"),
    ("/v1/chat/completions", {"error"}, "invalid_request_error"),
    ("/v1/messages", {"type", "error", "request_id"}, "error"),
    ("/v1/messages/count_tokens", {"type", "error", "request_id"}, "error"),
    ("/v3/nothing", {"error"}, None),
    ("/v3/chat/completions", {"error"}, None),
    ("/api/tags", {"error"}, None),
    ("/api/generate-batch", {"error"}, None),
    ("/info", {"error", "error_type"}, None),
    ("/generate", {"error", "error_type"}, None),
    ("/nothing", {"code", "type", "message"}, None),
    ("/invocations", {"code", "type", "message"}, None),
]


@pytest.fixture(scope="module")
def keyed_server() -> Iterator[RunningServer]:
    """A server that asks for a key."""
    with running_server(KEYED, dialects=real_dialects()) as server:
        yield server


class TestShapes:
    """Errors that no dialect sees have the shape of the API whose prefix it is."""

    @table(("path", "fields", "error_type"), SHAPES)
    @table("method", ["PUT", "POST"])
    def test_unknown_paths_wrong_methods_and_wrong_keys(
        self, method: str, path: str, fields: set[str], error_type: str | None, keyed_server: RunningServer
    ) -> None:
        answer = httpx.request(method, f"{keyed_server.url}{path}", json={})
        assert answer.status_code in ({404, 405} if method == "PUT" else {401, 404, 405})
        body = answer.json()
        assert set(body) == fields
        if "code" in body:
            assert body["code"] == answer.status_code
        if error_type is not None:
            assert error_type in (body.get("type"), body["error"]["type"])

    def test_the_text_service_answers_in_text(self, client: httpx.Client) -> None:
        answer = client.put("/api/generate-one")
        assert (answer.status_code, answer.headers["content-type"]) == (405, "text/plain; charset=utf-8")
        assert answer.text == "PUT is not allowed for /api/generate-one: OPTIONS, POST are\n"

    def test_anthropics_client_is_told_in_its_words(self, client: httpx.Client) -> None:
        answer = client.post("/v1/messages/nothing", json={}, headers={"x-request-id": "r-1"})
        assert (answer.status_code, answer.headers["request-id"]) == (404, "r-1")
        body = answer.json()
        assert (body["type"], body["error"]["type"], body["request_id"]) == ("error", "not_found_error", "r-1")
        assert body["error"]["message"].startswith("Unknown path /v1/messages/nothing: the nearest one is /v1/messages")

    def test_openais_client_raises_what_it_should(self, server: RunningServer) -> None:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            with pytest.raises(openai.NotFoundError, match="nearest one is") as caught:
                client.images.generate(prompt="a cat")
            assert caught.value.type == "invalid_request_error"

    def test_an_internal_defect_has_the_shape_too(
        self, server: RunningServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server.service, "tokenizer", None)
        answer = client.post("/tokenize", json={"prompt": "x"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
        assert "AttributeError" not in answer.text
