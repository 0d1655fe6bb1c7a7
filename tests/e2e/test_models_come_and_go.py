"""Models of a store loaded, replaced and unloaded by clients of a real server, over the demo model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from dragoman.config.resolve import demo_model_dir
from tests.support.aws import aws_runtime
from tests.support.server_process import ServerProcess, serve
from tests.support.tables import table

BODY = {"inputs": "What is deep learning?", "parameters": {"max_new_tokens": 8}}
OPTIONS = "option.max_model_len=256\noption.kv_cache_gb=0.02\n"
OK = {"error_code": "OK", "error_message": "OK"}


def add_model(directory: Path, options: str = OPTIONS) -> None:
    """Put a copy of the demo model into a store."""
    directory.mkdir()
    for file in demo_model_dir().iterdir():
        if file.is_file():
            shutil.copy(file, directory / file.name)
    (directory / "serving.properties").write_text(options, encoding="utf-8")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two models."""
    directory = tmp_path_factory.mktemp("store")
    for name in ("first", "second"):
        add_model(directory / name)
    return directory


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[ServerProcess]:
    """A server that begins with the first one."""
    arguments = ("--model-store", str(store), "--load-models", str(store / "first"))
    with serve(*arguments, environ={"OPTION_DTYPE": "f32"}) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    """A client of that server."""
    with httpx.Client(base_url=server.base_url, timeout=120) as client:
        yield client


def names(client: httpx.Client) -> list[str]:
    """What is served."""
    return [model["modelName"] for model in client.get("/models").json()["models"]]


def available(*served: str) -> dict[str, Any]:
    """What OVMS's status says."""
    return {name: {"model_version_status": [{"version": "1", "state": "AVAILABLE", "status": OK}]} for name in served}


def test_a_model_comes_answers_changes_and_goes(client: httpx.Client, store: Path) -> None:
    text = client.post("/predictions/first", json=BODY).json()
    answer = client.post("/models", params={"url": "second", "model_name": "m", "job_queue_size": "3", "device": "0"})
    assert (answer.status_code, answer.json()) == (200, {"status": 'Model "m" registered.'})
    assert answer.headers["x-dragoman-ignored"] == "device"
    assert client.post("/predictions/m", json=BODY).json() == text
    [workflow] = client.get("/models/m").json()
    [model] = workflow["models"]
    assert (model["queueSize"], model["loadedAtStartup"], model["status"]) == (3, False, "READY")
    assert client.post("/models", json={"url": str(store / "second"), "model_name": "m"}).status_code == 409
    answer = client.put("/models/m", params={"url": f"file://{store}/second", "option.max_model_len": "128"})
    assert (answer.status_code, answer.json()) == (200, {"status": 'Model "m" replaced.'})
    lengths = {model["id"]: model["max_model_len"] for model in client.get("/v1/models").json()["data"]}
    assert lengths == {"first": 256, "m": 128}
    assert client.post("/predictions/m", json=BODY).json() == text
    assert client.delete("/models/m").json() == {"status": 'Model or workflow "m" unregistered'}
    assert client.post("/predictions/m", json=BODY).status_code == 404
    assert names(client) == ["first"]


@table(
    ("query", "status", "words"),
    [
        ({"url": "/etc"}, 400, "must be the path of a model in the model store"),
        ({"url": "../first"}, 400, "must be the path of a model in the model store"),
        ({"url": "s3://bucket/m"}, 400, "nothing is downloaded"),
        ({"url": "third"}, 404, "the model store holds no directory or archive there"),
        ({"url": "second", "job_queue_size": "many"}, 400, "job_queue_size=many (this call)"),
        ({"url": "second", "option.port": "1"}, 400, "only the operator can set it"),
        ({"url": "second", "option.model_id": "/etc"}, 400, "only the operator can set it"),
        (
            {"url": "second", "option.engine": "remote", "option.upstream": "http://a"},
            400,
            "only the operator can set it",
        ),
        (
            {"url": "second", "option.allow_image_hosts": "*"},
            400,
            "with --allow-image-hosts or OPTION_ALLOW_IMAGE_HOSTS",
        ),
        ({"url": "second", "option.kv_cache_gb": "100000"}, 507, "MiB are available"),
    ],
)
def test_what_is_refused_says_why_and_loads_nothing(
    client: httpx.Client, query: dict[str, str], status: int, words: str
) -> None:
    answer = client.post("/models", params={"model_name": "refused", **query})
    assert (answer.status_code, answer.json()["code"]) == (status, status)
    assert words in answer.json()["message"]
    assert names(client) == ["first"]


def test_a_target_is_loaded_when_a_call_wants_it(server: ServerProcess, client: httpx.Client) -> None:
    with aws_runtime(server.base_url) as runtime:
        answer = runtime.invoke_endpoint(EndpointName="e", Body=json.dumps(BODY), TargetModel="second.tar.gz")
        assert json.loads(answer["Body"].read()) == client.post("/predictions/first", json=BODY).json()
        assert names(client) == ["first", "second"]
        with pytest.raises(ClientError, match="ValidationError"):
            runtime.invoke_endpoint(EndpointName="e", Body=json.dumps(BODY), TargetModel="third.tar.gz")
    client.delete("/models/second")


@pytest.mark.full("loads models three times; tests/server/test_ovms_config.py reloads made-up ones")
def test_a_reload_follows_the_store(client: httpx.Client, store: Path) -> None:
    assert client.get("/v1/config").json() == available("first")
    answer = client.post("/v1/config/reload")
    assert (answer.status_code, answer.json()) == (201, available("first", "second"))
    assert client.post("/v1/config/reload").status_code == 200
    (store / "second" / "serving.properties").write_text(OPTIONS.replace("256", "64"), encoding="utf-8")
    assert client.post("/v1/config/reload").status_code == 201
    assert client.get("/v1/models/second").json()["max_model_len"] == 64
    shutil.rmtree(store / "second")
    answer = client.post("/v1/config/reload")
    assert (answer.status_code, answer.json()) == (201, available("first"))
    assert client.post("/predictions/first", json=BODY).status_code == 200
