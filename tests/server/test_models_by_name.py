"""Models that are loaded because a call names them, over real HTTP: in every API, with streams that wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import openai
import pytest

from dragoman.errors import EngineFailed
from dragoman.server.app import ServerConfig
from dragoman.server.http.fields import Switches
from dragoman.server.operations import GenerateOperation, PoolingOperation
from tests.support.every_api import APIS, dialects_of, filled
from tests.support.fake_service import Gate
from tests.support.real_dialects import fake_profile
from tests.support.running_server import RunningServer, post_bytes, read_until
from tests.support.tables import table

SILENT_S = 0.01
CLOSING = ("connection: close", "authorization: Bearer none")  # who sends a key means OpenAI's API
COMMENT, PING = b": keep-alive\n\n", b'event: ping\ndata: {"type":"ping"}\n\n'
DIALECTS = dialects_of(fake_profile())
NAMING = [
    operation
    for api in APIS[:-1]  # the last one is the tests' own
    for operation in api.operations
    if isinstance(operation, GenerateOperation)
    and not isinstance(operation, PoolingOperation)
    and isinstance(operation.example, dict)
    and "model" in operation.example
]
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server whose models any call may name; `fake` is there from the start, `small` and `org/big` are not."""
    server = RunningServer(ServerConfig(switches=Switches(keep_alive_s=SILENT_S)), dialects=DIALECTS, has_hosting=True)
    server.hosting.is_named = True
    server.hosting.store = {"small": "/opt/ml/models/small", "org/big": "/opt/ml/models/org/big"}
    server.start()
    yield server
    server.http.stop()
    server.http.stop()
    server.join()


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    """An HTTP client of that server."""
    with httpx.Client(base_url=server.url) as client:
        yield client


def unload(client: httpx.Client, name: str) -> None:
    """Have a model leave."""
    assert client.delete(f"/models/{name}").status_code == 200


def test_every_operation_loads_the_model_that_its_body_names(server: RunningServer, client: httpx.Client) -> None:
    for operation in NAMING:
        body = {**operation.example, "model": "small", "stream": False}
        answer = client.post(filled(operation.path), json=body)
        assert answer.status_code == 200, (operation.path, answer.text)
        assert server.hosting.services["small"][-1].requests, operation.path
        unload(client, "small")
    assert len(server.hosting.services["small"]) == len(NAMING)
    assert server.service.requests == []


def test_lists_have_every_model_that_calls_may_name(server: RunningServer, client: httpx.Client) -> None:
    served, every = ["fake", "nickname"], ["fake", "nickname", "small", "org/big"]
    for path in ("/v1/models", "/v3/models"):
        assert [one["id"] for one in client.get(path).json()["data"]] == every
    anthropic = client.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()["data"]
    assert [one["id"] for one in anthropic] == every
    assert {one["id"]: one["state"] for one in client.get("/api/v0/models").json()["data"]} == {
        **dict.fromkeys(served, "loaded"),
        **dict.fromkeys(every[2:], "not-loaded"),
    }
    assert [one["name"] for one in client.get("/api/tags").json()["models"]] == [f"{name}:latest" for name in every]
    assert [one["name"] for one in client.get("/api/ps").json()["models"]] == [f"{name}:latest" for name in served]
    for path in ("/v1/models/org/big", "/api/v0/models/org/big"):
        assert client.get(path).json()["id"] == "org/big"
    shown = client.post("/api/show", json={"model": "org/big"}).json()
    assert (shown["capabilities"], shown["model_info"]["general.basename"]) == (["completion"], "org/big")
    assert server.hosting.services == {}, "looking loads nothing"
    server.hosting.store["late"] = "/opt/ml/models/late"
    assert client.post("/v1/chat/completions", json={**CHAT, "model": "late"}).status_code == 200


def test_names_that_nobody_has_are_told_as_ever(server: RunningServer, client: httpx.Client) -> None:
    for operation in NAMING:
        body = {**operation.example, "model": "../etc", "stream": False}
        status = client.post(filled(operation.path), json=body).status_code
        assert status in (400, 404), operation.path
        body["model"] = "default"
        if not operation.path.startswith("/api/"):
            assert client.post(filled(operation.path), json=body).status_code == 200, operation.path
    assert server.hosting.services == {}


STREAMING = [one for one in NAMING if not one.path.startswith("/api/chat") and not one.path.startswith("/api/generate")]


@table("operation", STREAMING, ids=[one.path for one in STREAMING])
def test_streams_are_kept_alive_while_the_model_loads(server: RunningServer, operation: GenerateOperation) -> None:
    gate = server.hosting.gates["small"] = Gate()
    body = json.dumps({**operation.example, "model": "small", "stream": True}).encode()
    with server.connect() as connection:
        connection.sendall(post_bytes(filled(operation.path), body, "content-type: application/json", *CLOSING))
        pulse = PING if "messages" in operation.path else COMMENT
        received = b""
        while received.count(pulse) < 2:
            piece = read_until(connection, pulse)
            assert piece, received
            received += piece
        gate.open()
        while piece := connection.recv(65_536):
            received += piece
    assert received.startswith(b"HTTP/1.1 200 OK")
    assert received.count(b"HTTP/1.1") == 1
    assert b"Deep" in received, received
    assert httpx.delete(f"{server.url}/models/small").status_code == 200


def test_a_failure_is_told_in_the_stream_and_the_next_call_loads_again(
    server: RunningServer, client: httpx.Client
) -> None:
    gate = server.hosting.gates["small"] = Gate()
    server.hosting.failures["small"] = EngineFailed("Model small could not be loaded: the disk is gone")
    messages: Any = CHAT["messages"]
    with client.stream("POST", "/v1/chat/completions", json={**CHAT, "model": "small", "stream": True}) as answer:
        lines = answer.iter_lines()
        assert (answer.status_code, next(lines)) == (200, ": keep-alive")
        gate.open()
        told = [line for line in lines if line.startswith("data: ")]
    assert "could not be loaded: the disk is gone" in told[0]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as official:
        with pytest.raises(openai.InternalServerError, match="the disk is gone"):
            official.chat.completions.create(model="small", messages=messages)
        del server.hosting.failures["small"]
        answered = official.chat.completions.create(model="small", messages=messages)
    assert answered.choices[0].message.content


def test_a_call_whose_time_is_over_is_told(server: RunningServer, client: httpx.Client) -> None:
    gate = server.hosting.gates["small"] = Gate()
    for headers in ({"x-request-timeout-ms": "30"}, {"x-stainless-read-timeout": "0.03"}):
        answer = client.post("/v1/chat/completions", json={**CHAT, "model": "small"}, headers=headers)
        assert answer.status_code == 503, answer.text
        assert "0.03 s that the client allows" in answer.json()["error"]["message"]
    gate.open()
    assert client.post("/v1/chat/completions", json={**CHAT, "model": "small"}).status_code == 200
    assert len(server.hosting.services["small"]) == 1, "the load went on"


def test_counting_tokens_loads_the_model_and_reading_facts_does_not(
    server: RunningServer, client: httpx.Client
) -> None:
    body = {"model": "small", "messages": CHAT["messages"]}
    assert client.post("/v1/messages/count_tokens", json=body).status_code != 404
    assert list(server.hosting.services) == ["small"]
    answer = client.get("/tokenizer_info", params={"model": "org/big"})
    assert (answer.status_code, "org/big is not loaded" in answer.text) == (503, True)
    assert list(server.hosting.services) == ["small"]


def test_ollamas_client_loads_keeps_and_unloads(server: RunningServer) -> None:
    with ollama.Client(server.url) as official:
        _load_keep_and_unload(official, server)


def _load_keep_and_unload(official: ollama.Client, server: RunningServer) -> None:
    assert official.generate("small", keep_alive="1h30m").done_reason == "load"
    assert server.hosting.kept == {"small": 5400.0}
    for value, seconds in ((-1, float("inf")), ("-1m", float("inf")), (7.5, 7.5), ("250ms", 0.25), (None, None)):
        official.chat("small", [{"role": "user", "content": "hi"}], keep_alive=value)
        assert server.hosting.kept == {"small": seconds}
    httpx.post(f"{server.url}/v1/chat/completions", json={**CHAT, "model": "small"})
    assert server.hosting.kept == {"small": None}, "other APIs' calls say nothing of it"
    assert official.chat("small", keep_alive=0).done_reason == "unload"
    assert server.hosting.kept == {"small": 0.0}
    assert official.generate("org/big", keep_alive=0).done_reason == "unload"
    assert official.chat("org/big:latest", keep_alive="0s").done_reason == "unload"
    assert list(server.hosting.services) == ["small"], "nothing is loaded to be unloaded"
    with pytest.raises(ollama.ResponseError, match="keep_alive must be a number of seconds"):
        official.generate("org/big", keep_alive="soon")


def test_keep_alive_is_not_named_as_without_effect(server: RunningServer, client: httpx.Client) -> None:
    for body in ({"prompt": "hi"}, {}):
        for keep_alive in ("5m", 0):
            answer = client.post(
                "/api/generate", json={"model": "org/big", "stream": False, "keep_alive": keep_alive, "odd": 1, **body}
            )
            assert answer.headers["x-dragoman-ignored"] == "odd"


def test_ttl_says_how_long_a_model_stays_that_was_loaded_for_a_call(
    server: RunningServer, client: httpx.Client
) -> None:
    for path, body in (
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "hi"}),
        ("/api/v0/chat/completions", CHAT),
        ("/v1/responses", {"input": "hi", "store": False}),
    ):
        answer = client.post(path, json={"model": "org/big", "ttl": 300, **body})
        assert answer.status_code == 200, answer.text
        assert "ttl" not in answer.headers.get("x-dragoman-ignored", "")
        assert server.hosting.kept["org/big"] == 300.0
        server.hosting.kept.clear()
    refused = client.post("/v1/completions", json={"model": "org/big", "prompt": "hi", "ttl": -1})
    assert refused.status_code == 400
    assert "ttl must be between 0.0 and 4294967295, got -1" in refused.json()["error"]["message"]
