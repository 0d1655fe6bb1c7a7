"""What OpenVINO Model Server's clients ask of one model: KServe's v2 protocol and TensorFlow Serving's status, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman import __version__
from dragoman.errors import EngineFailed
from dragoman.server.app import ServerConfig
from dragoman.server.registry import ServerState
from tests.support.fake_service import Gate
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

OK = {"error_code": "OK", "error_message": "OK"}
MODEL_PATHS = ("/v2/models/{}", "/v2/models/{}/ready", "/v1/models/{}/versions/1")
"""Where a model is asked for, by its name."""
OF_VERSION = ("/v2/models/two/versions/{}", "/v2/models/two/versions/{}/ready", "/v1/models/two/versions/{}")
"""Where a version of the model `two` is asked for."""


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server whose models come and go, with a second one that has a version."""
    with running_server(dialects=real_dialects(), has_hosting=True) as server:
        httpx.post(f"{server.url}/models?url=two&model_version=2").raise_for_status()
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    """An HTTP client of that server."""
    with httpx.Client(base_url=server.url) as client:
        yield client


def described(name: str, version: str = "1") -> Any:
    """A model as KServe's clients are told."""
    return {"name": name, "versions": [version], "platform": "OpenVINO", "inputs": [], "outputs": []}


def status_of(version: str, state: str = "AVAILABLE", error: Any = OK) -> Any:
    """A version's status."""
    return {"model_version_status": [{"version": version, "state": state, "status": error}]}


def answer_of(client: httpx.Client, path: str) -> tuple[int, Any]:
    """Status and body."""
    answer = client.get(path)
    return answer.status_code, answer.json()


def test_the_server_says_what_it_is(client: httpx.Client) -> None:
    assert answer_of(client, "/v2") == (200, {"name": "dragoman", "version": __version__, "extensions": []})


@table(
    ("path", "body"),
    [
        ("/v2/models/fake/ready", {"name": "fake", "ready": True}),
        ("/v2/models/fake/versions/1/ready", {"name": "fake", "ready": True}),
        ("/v2/models/default/ready", {"name": "fake", "ready": True}),
        ("/v2/models/two/versions/2/ready", {"name": "two", "ready": True}),
        ("/v2/models/fake", described("fake")),
        ("/v2/models/fake/versions/1", described("fake")),
        ("/v2/models/two", described("two", "2")),
        ("/v2/models/two/versions/2", described("two", "2")),
        ("/v1/models/fake/versions/1", status_of("1")),
        ("/v1/models/default/versions/1", status_of("1")),
        ("/v1/models/two/versions/2", status_of("2")),
    ],
)
def test_a_model_is_ready_and_described_with_and_without_its_version(
    client: httpx.Client, path: str, body: Any
) -> None:
    assert answer_of(client, path) == (200, body)


@table("path", MODEL_PATHS)
def test_a_model_that_is_not_served_is_not_found(client: httpx.Client, path: str) -> None:
    status, body = answer_of(client, path.format("nobody"))
    assert status == 404
    assert "not found" in body["error"]
    assert "nobody" in body["error"]


@table("path", OF_VERSION)
def test_another_version_is_not_found_and_the_one_that_is_there_is_named(client: httpx.Client, path: str) -> None:
    expected = "Model or workflow not found: two version 3 (served: version 2)"
    assert answer_of(client, path.format("3")) == (404, {"error": expected})


def test_a_version_that_loads_or_failed_has_a_state_and_is_not_ready(
    server: RunningServer, client: httpx.Client
) -> None:
    server.hosting.failures["broken"] = EngineFailed("no weights")
    server.hosting.gates["slow"] = Gate()
    for name in ("broken", "slow"):
        client.post(f"/models?url={name}&synchronous=false")
    while not {"broken", "slow"} <= set((told := client.get("/v1/config")).json()) or "no weights" not in told.text:
        pass
    failed = status_of("1", "LOADING", {"error_code": "UNKNOWN", "error_message": "no weights"})
    assert answer_of(client, "/v1/models/broken/versions/1") == (200, failed)
    assert answer_of(client, "/v1/models/slow/versions/1") == (200, status_of("1", "LOADING"))
    assert client.get("/v2/models/slow/ready").status_code in (404, 503)  # the fake store announces nothing
    assert client.get("/v2/models/broken/ready").status_code == 404


@table("is_recovering", [True, False])
def test_a_model_whose_engine_is_dead_is_described_but_not_ready(
    server: RunningServer, client: httpx.Client, is_recovering: bool
) -> None:
    server.engine.death, server.engine.is_recovering = "it crashed", is_recovering
    status, body = answer_of(client, "/v2/models/fake/ready")
    assert status == 503
    assert "fake" in body["error"]
    assert answer_of(client, "/v2/models/fake") == (200, described("fake"))
    assert answer_of(client, "/v2/models/two/ready") == (200, {"name": "two", "ready": True})


def test_no_model_is_ready_while_the_server_shuts_down(server: RunningServer, client: httpx.Client) -> None:
    server.registry.announce_drain()
    assert server.registry.state is ServerState.DRAINING
    assert answer_of(client, "/v2/models/fake/ready") == (503, {"error": "The server is shutting down"})


def test_a_model_of_the_start_is_loading_until_it_is_served() -> None:
    server = RunningServer(dialects=real_dialects())
    server.may_load.clear()
    server.start(wait_ready=False)
    try:
        with httpx.Client(base_url=server.url) as client:
            ready = client.get("/v2/models/fake/ready")
            assert (ready.status_code, "loading" in ready.json()["error"]) == (503, True)
            assert ready.headers["retry-after"]
            assert answer_of(client, "/v1/models/fake/versions/1") == (200, status_of("1", "LOADING"))
            server.may_load.set()
            while (told := client.get("/v1/models/fake/versions/1").json()) != status_of("1"):
                assert told == status_of("1", "LOADING")
            assert client.get("/v2/models/fake/ready").status_code == 200
    finally:
        server.may_load.set()
        server.http.stop()
        server.join()


@table("path", ["/v2", *(path.format("fake") for path in MODEL_PATHS)])
def test_they_need_a_key_where_keys_are_asked_for(path: str) -> None:
    config = ServerConfig(api_keys=frozenset({"secret"}))
    with (
        running_server(config, dialects=real_dialects()) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"x-api-key": "secret"}).status_code == 200


@table("path", ["/v2/models/fake/infer", "/v2/models/fake/versions/1/infer"])
def test_tensors_are_refused_by_name(client: httpx.Client, path: str) -> None:
    answer = client.post(path, json={"inputs": []})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("infer is not offered")
    assert client.get("/v2/models/fake/ready").status_code == 200


def test_openais_clients_are_told_of_a_model_as_before(client: httpx.Client) -> None:
    """The path that the two protocols share is OpenAI's."""
    for path, owner in (("/v1/models/fake", "dragoman"), ("/v3/models/fake", "OVMS")):
        status, body = answer_of(client, path)
        assert (status, body["id"], body["object"], body["owned_by"]) == (200, "fake", "model", owner)


@table("path", ["/v2/model/fake", "/v2/models", "/v2/health/readyy", "/v2/nothing"])
def test_paths_below_v2_that_are_none_are_told_in_its_shape(client: httpx.Client, path: str) -> None:
    status, body = answer_of(client, path)
    assert (status, list(body)) == (404, ["error"])
    assert "the nearest one is /v2" in body["error"]
