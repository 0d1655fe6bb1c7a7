"""LM Studio's operations over HTTP: OpenAI's answers, with statistics, and the list of models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from dragoman import __version__
from dragoman.server.admission import Admission
from dragoman.server.api import ModelCard
from dragoman.server.apis import set_up_all
from dragoman.server.generation.service import Service
from dragoman.server.registry import ServedModel
from dragoman.tokenizer.chat_template import ChatTemplate
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_engine import ABILITIES, FakeEngine, saying
from tests.support.fake_pooling import FakePooling
from tests.support.patience import PATIENCE_S
from tests.support.real_dialects import fake_profile
from tests.support.running_server import running_server
from tests.support.tables import table

CONTEXT = 64
CARD = ModelCard(format="gguf", config={"model_type": "llama", "max_position_embeddings": 4096})
MESSAGES = [{"role": "user", "content": "Hi"}]
PATHS: dict[str, dict[str, Any]] = {
    "/api/v0/chat/completions": {"messages": MESSAGES},
    "/api/v0/completions": {"prompt": "Hi"},
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    engine = FakeEngine(saying("Once there"), capabilities=replace(ABILITIES, max_model_len=CONTEXT))
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    service = Service(name="org/bytes", engine=engine, tokenizer=ByteTokenizer(), chat_template=template)
    profile = fake_profile(name="org/bytes", card=CARD, max_model_len=CONTEXT, dtype="q4_k_m", abilities={"vision"})
    vectors = FakePooling()
    embeds = fake_profile(name="vectors", pooling=vectors)
    with running_server(dialects=set_up_all(profile)) as server:
        server.registry.retire(server.registry.models[0])
        generates = ServedModel("org/bytes", service, engine, set_up_all(profile), Admission("bytes"), dtype="q4_k_m")
        server.registry.add(replace(generates, profile=profile))
        pools = ServedModel("vectors", service, engine, set_up_all(embeds), Admission("vectors"), pooling=vectors)
        server.registry.add(replace(pools, profile=embeds))
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
            yield client


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json={"model": "org/bytes", **PATHS.get(path, {}), **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


@table("path", PATHS)
def test_an_answer_is_openais_with_statistics(client: httpx.Client, path: str) -> None:
    told = post(client, path, max_tokens=4)
    expected = post(client, path.replace("/api/v0", "/v1"), max_tokens=4, model="org/bytes", **PATHS[path])
    stats = told.pop("stats")
    assert told.pop("model_info") == {"arch": "llama", "quant": "q4_k_m", "format": "gguf", "context_length": CONTEXT}
    runtime = told.pop("runtime")
    assert (runtime["name"], runtime["version"], "gguf" in runtime["supported_formats"]) == (
        "dragoman",
        __version__,
        True,
    )
    assert (told["choices"], told["usage"]) == (expected["choices"], expected["usage"])
    assert told.keys() == expected.keys()
    assert stats["stop_reason"] == "maxPredictedTokensReached"
    assert 0 <= stats["time_to_first_token"] <= PATIENCE_S
    assert 0 <= stats["generation_time"] <= PATIENCE_S


@table("path", PATHS)
@table(
    ("body", "reason"),
    [
        ({}, "eosFound"),
        ({"max_tokens": -1}, "eosFound"),
        ({"stop": "there", "max_tokens": 30}, "stopStringFound"),
        ({"max_tokens": 3}, "maxPredictedTokensReached"),
        ({"ignore_eos": True, "max_tokens": -1}, "contextLengthReached"),
    ],
)
def test_statistics_say_why_the_answer_ended(
    client: httpx.Client, path: str, body: dict[str, Any], reason: str
) -> None:
    assert post(client, path, **body)["stats"]["stop_reason"] == reason
    answer = client.post(path, json={"model": "org/bytes", **PATHS[path], **body, "stream": True})
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n")]
    assert lines[-2:] == ["[DONE]", ""]
    last = json.loads(lines[-3])
    assert (last.keys(), last["stats"]["stop_reason"]) == ({"stats", "model_info", "runtime"}, reason)


def test_models_are_listed_with_what_they_are(client: httpx.Client) -> None:
    told = client.get("/api/v0/models").json()
    assert [(one["id"], one["type"], one["state"]) for one in told["data"]] == [
        ("org/bytes", "vlm", "loaded"),
        ("vectors", "embeddings", "loaded"),
    ]
    one = client.get("/api/v0/models/org/bytes").json()
    assert one == told["data"][0]
    assert (one["publisher"], one["arch"], one["compatibility_type"], one["quantization"]) == (
        "org",
        "llama",
        "gguf",
        "q4_k_m",
    )
    assert (one["max_context_length"], one["loaded_context_length"]) == (4096, CONTEXT)
    missing = client.get("/api/v0/models/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_vectors_and_errors_are_openais(client: httpx.Client) -> None:
    body = {"model": "vectors", "input": "one two"}
    assert post(client, "/api/v0/embeddings", **body) == post(client, "/v1/embeddings", **body)
    refused = client.post("/api/v0/completions", json={"model": "org/bytes", "prompt": "a", "max_tokens": -2})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("max_tokens must be between 1 and")
