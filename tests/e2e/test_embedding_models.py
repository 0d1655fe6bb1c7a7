"""A model that generates and models that embed and score in one process, started as users start them."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from dragoman.config.resolve import demo_model_dir
from tests.support.pooling_checkpoint import write_pooling_case
from tests.support.server_process import ServerProcess, serve

SUGGESTED = re.compile(r"Try it:\n\s*(curl .*\\\n.*)\n")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The demo model, one that embeds and one that scores."""
    root = tmp_path_factory.mktemp("models")
    places: dict[str, Path] = {
        "demo": demo_model_dir(),
        "embedder": write_pooling_case("bert_mean", root),
        "scorer": write_pooling_case("bert_reranker", root),
    }
    models = ",".join(f"{name}={place}" for name, place in places.items())
    with serve(environ={"SERVING_LOAD_MODELS": models, "OPTION_KV_CACHE_GB": "0.02"}) as running:
        yield running


def test_all_are_healthy(server: ServerProcess) -> None:
    answer = httpx.get(f"{server.base_url}/ping", timeout=60)
    assert answer.status_code == 200
    assert set(answer.json()) == {"demo", "embedder", "scorer"}
    assert any("embeds texts in 48 dimensions" in line for line in server.output)
    assert any("scores pairs of texts" in line for line in server.output)


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
