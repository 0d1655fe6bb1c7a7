"""Embeddings and reranking over real servers: OpenAI's client and others get what sentence-transformers computes."""

from __future__ import annotations

import base64
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import ollama
import openai
import pytest
from huggingface_hub import InferenceClient

from tests.support.console_blocks import DOCUMENTED_URL, ConsoleBlock
from tests.support.pooling_checkpoint import (
    Array,
    case_pairs,
    case_texts,
    read_case,
    recorded,
    words,
    write_pooling_case,
)
from tests.support.server_process import ServerProcess, serve
from tests.support.tables import table

TOLERANCE = 1e-4
EMBEDDER, SCORER = "bert_mean", "xlmr_reranker"
TEXTS = case_texts(read_case(EMBEDDER))[:6]  # the last one is longer than the model takes
PAGE = Path(__file__).resolve().parents[2] / "docs" / "dialects" / "embeddings.md"
SUGGESTED = re.compile(r"\n  (curl .*\\\n.*)\n")
_EXAMPLE = re.compile(r"^```shell\n(?P<command>.*?)```\n\n```json\n(?P<answer>.*?)```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def server(pooling_server: ServerProcess) -> ServerProcess:
    return pooling_server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def official(server: ServerProcess) -> Iterator[ollama.Client]:
    client = ollama.Client(host=server.base_url)
    yield client
    client._client.close()


def post(server: ServerProcess, path: str, **body: Any) -> Any:
    """The decoded answer of a call that succeeds."""
    answer = httpx.post(f"{server.base_url}{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def expected(indices: list[int]) -> Array:
    """What sentence-transformers computed of some texts."""
    rows: Array = recorded(EMBEDDER)["embeddings"][indices]
    return rows


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_openais_client_gets_what_sentence_transformers_computes(client: openai.OpenAI, encoding: Any) -> None:
    more = {} if encoding is None else {"encoding_format": encoding}  # left out, the client asks for base64 itself
    made = client.embeddings.create(model="embedder", input=TEXTS, **more)
    rows: list[Any] = [item.embedding for item in made.data]
    if encoding == "base64":
        rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
    np.testing.assert_allclose(np.array(rows), expected(list(range(6))), atol=TOLERANCE)
    assert made.usage.prompt_tokens == made.usage.total_tokens > sum(len(text.split()) for text in TEXTS)
    assert made.model == "embedder"


ALLOWING = {"allow_token_ids": True}


def test_openais_client_sends_token_ids(client: openai.OpenAI, server: ServerProcess) -> None:
    ids = [
        post(server, "/tokenize", model="embedder", prompt=text, add_special_tokens=True)["tokens"]
        for text in TEXTS[1:4]
    ]
    made = client.embeddings.create(model="embedder", input=ids, extra_body=ALLOWING)
    np.testing.assert_allclose([item.embedding for item in made.data], expected([1, 2, 3]), atol=TOLERANCE)
    assert made.usage.prompt_tokens == sum(map(len, ids))
    one = client.embeddings.create(model="embedder", input=ids[1], extra_body=ALLOWING)
    np.testing.assert_allclose([item.embedding for item in one.data], expected([2]), atol=TOLERANCE)


def test_openais_client_shortens_vectors(client: openai.OpenAI) -> None:
    made = client.embeddings.create(model="embedder", input=TEXTS[2], dimensions=8)
    [row] = expected([2])[:, :8]
    np.testing.assert_allclose(made.data[0].embedding, row / np.linalg.norm(row), atol=TOLERANCE)


def test_openais_client_is_told_what_is_wrong(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="dimensions must be between 1 and 48, got 49") as caught:
        client.embeddings.create(model="embedder", input="a", dimensions=49)
    assert caught.value.param == "dimensions"
    with pytest.raises(openai.BadRequestError, match=r"input\[1\] has \d+ tokens, allowed: at most 128") as caught:
        client.embeddings.create(model="embedder", input=["a", words(300)])
    assert caught.value.code == "context_length_exceeded"
    for model, does in (("demo", "generates text"), ("scorer", "scores pairs of texts")):
        with pytest.raises(openai.BadRequestError, match=f"model {model} {does} and does not embed"):
            client.embeddings.create(model=model, input="a")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="nobody", input="a")


def test_huggingface_hubs_client_embeds_as_with_tei(server: ServerProcess) -> None:
    answer = post(server, "/embed?model_name=embedder", inputs=TEXTS)
    np.testing.assert_allclose(answer, expected(list(range(6))), atol=TOLERANCE)
    client = InferenceClient(base_url=f"{server.base_url}/predictions/embedder")
    made = client.feature_extraction(TEXTS[2])
    np.testing.assert_allclose(np.reshape(made, (1, -1)), expected([2]), atol=TOLERANCE)


@pytest.mark.parametrize("path", ["/v3/embeddings", "/predictions/embedder"])
def test_the_other_apis_tell_the_same_numbers(server: ServerProcess, path: str) -> None:
    if path == "/v3/embeddings":
        rows = [item["embedding"] for item in post(server, path, model="embedder", input=TEXTS)["data"]]
    else:
        rows = post(server, path, inputs=TEXTS)
    np.testing.assert_allclose(rows, expected(list(range(6))), atol=TOLERANCE)


def test_ollamas_client_gets_what_sentence_transformers_computes(
    server: ServerProcess, official: ollama.Client
) -> None:
    for name in ("embedder", "embedder:latest"):
        made = official.embed(name, TEXTS)
        np.testing.assert_allclose(made.embeddings, expected(list(range(6))), atol=TOLERANCE)  # the last one is cut
        assert made.model == name
    known = official.embed("embedder", TEXTS[2])
    np.testing.assert_allclose(known.embeddings, expected([2]), atol=TOLERANCE)
    tokens = post(server, "/tokenize", model="embedder", prompt=TEXTS[2])
    assert known.prompt_eval_count == tokens["count"]
    assert known.total_duration is not None
    assert known.load_duration is not None
    assert known.total_duration > known.load_duration > 0
    [row] = expected([2])[:, :8]
    shortened = official.embed("embedder", TEXTS[2], dimensions=8).embeddings
    np.testing.assert_allclose(shortened, [row / np.linalg.norm(row)], atol=TOLERANCE)
    older = official.embeddings("embedder", TEXTS[2]).embedding
    np.testing.assert_allclose([older], expected([2]), atol=TOLERANCE)
    assert "embedding" in (official.show("embedder").capabilities or [])
    assert {"demo:latest", "embedder:latest", "scorer:latest"} <= {one.model for one in official.list().models}


def test_ollamas_client_is_told_what_does_not_embed(official: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match=r"input\[1\] has \d+ tokens, allowed: at most 128"):
        official.embed("embedder", ["a", words(300)], truncate=False)
    with pytest.raises(ollama.ResponseError, match="model demo generates text and does not embed"):
        official.embed("demo", "a")
    with pytest.raises(ollama.ResponseError, match="model 'nobody' not found") as caught:
        official.embed("nobody", "a")
    assert caught.value.status_code == 404


def test_pairs_are_scored_as_a_cross_encoder_does(server: ServerProcess) -> None:
    pairs = case_pairs(read_case(SCORER))
    known = recorded(SCORER)
    queries, documents = [query for query, _ in pairs], [document for _, document in pairs]
    cut = {"truncate_prompt_tokens": -1, "model": "scorer"}
    raw = post(server, "/score", text_1=queries, text_2=documents, use_activation=False, **cut)
    np.testing.assert_allclose([one["score"] for one in raw["data"]], known["logits"], atol=TOLERANCE)
    scores = post(server, "/v1/score", queries=queries, documents=documents, **cut)
    np.testing.assert_allclose([one["score"] for one in scores["data"]], known["scores"], atol=TOLERANCE)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/v3/rerank", "/rerank"])
def test_documents_are_ordered_by_their_scores(server: ServerProcess, path: str) -> None:
    documents = ["water", words(9), words(30), "people find the way"]
    pairs = post(server, "/score", model="scorer", text_1="number of people", text_2=documents)["data"]
    scores = [one["score"] for one in pairs]
    answer = post(server, path, model="scorer", query="number of people", documents=documents)
    ranked = [(one["index"], one["relevance_score"]) for one in answer["results"]]
    assert [index for index, _ in ranked] == sorted(range(4), key=lambda index: -scores[index])
    np.testing.assert_allclose([score for _, score in ranked], sorted(scores, reverse=True), atol=1e-6)


def examples() -> list[ConsoleBlock]:
    """The commands of the page, with the answers that it shows."""
    text = PAGE.read_text(encoding="utf-8")
    return [ConsoleBlock(PAGE, one["command"], one["answer"], one.span("answer")) for one in _EXAMPLE.finditer(text)]


def split(answer: str) -> tuple[list[str], list[float]]:
    """What stands between the fractions in an answer, and the fractions; ids left out."""
    parts = re.split(r"(-?\d+\.\d+(?:e-?\d+)?)", re.sub(r'"id":"[^"]*"|"created":\d+', "", answer))
    return parts[::2], [float(part) for part in parts[1::2]]


@table("block", examples(), ids=lambda block: block.command[15:70])
def test_a_documented_command_answers_what_is_documented(
    block: ConsoleBlock, server: ServerProcess, update_golden: bool
) -> None:
    assert DOCUMENTED_URL in block.command
    answer = block.run(server.base_url)
    if update_golden:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(text.replace(block.answer, answer), encoding="utf-8")
        return
    told, numbers = split(answer)
    documented, documented_numbers = split(block.answer)
    assert told == documented
    assert numbers == pytest.approx(documented_numbers, abs=1e-4)


def test_the_page_has_an_example_of_every_route() -> None:
    commands = " ".join(block.command for block in examples())
    routes = [
        "/v1/embeddings",
        "/v3/embeddings",
        "/embed",
        "/predictions/",
        "/v1/rerank",
        "/v3/rerank",
        "/rerank",
        "/score",
    ]
    assert [route for route in routes if f":8080{route}" not in commands] == []


def test_all_are_healthy(server: ServerProcess) -> None:
    answer = httpx.get(f"{server.base_url}/ping", timeout=60)
    assert answer.status_code == 200
    assert set(answer.json()) == {"demo", "embedder", "scorer"}
    block = "".join(server.output)
    assert "  and embedder, scorer (" in block
    assert all(f" {name}," in block or f" {name};" in block for name in ("OpenAI", "TEI", "Anthropic"))


def test_one_of_them_generates(server: ServerProcess) -> None:
    body = {"prompt": "What", "max_tokens": 2}
    answer = httpx.post(f"{server.base_url}/v1/completions", json={**body, "model": "demo"}, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == 2
    for name, does in (("embedder", "embeds texts"), ("scorer", "scores pairs of texts")):
        answer = httpx.post(f"{server.base_url}/v1/completions", json={**body, "model": name}, timeout=60)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == f"model {name} {does} and does not generate"


def test_a_model_that_embeds_tokenizes(server: ServerProcess) -> None:
    body = {"model": "embedder", "prompt": "the way of water"}
    answer = httpx.post(f"{server.base_url}/tokenize", json=body, timeout=60).json()
    assert (answer["count"], answer["max_model_len"]) == (6, 128)


@pytest.mark.full("two starts; tests/cli/test_banner.py has the words, and the routes are asked above")
@pytest.mark.parametrize(
    ("case", "route", "key"),
    [("bert_mean", "/v1/embeddings", "data"), ("bert_reranker", "/v1/rerank", "results")],
)
def test_the_command_that_a_server_of_such_a_model_suggests_is_answered(
    case: str, route: str, key: str, tmp_path: Path
) -> None:
    with serve(str(write_pooling_case(case, tmp_path))) as server:
        while (said := SUGGESTED.search("".join(server.output))) is None:  # the block's last lines are on their way
            assert httpx.get(f"{server.base_url}/ping", timeout=60).status_code == 200
        assert shlex.split(said[1])[1] == server.base_url + route
        made = subprocess.run(["bash", "-c", said[1]], capture_output=True, check=True, timeout=60).stdout
    assert msgspec.json.decode(made)[key]
