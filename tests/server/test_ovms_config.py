"""OpenVINO Model Server's `/v1/config`, over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman.errors import Conflict, EngineFailed, NoMemory
from tests.support.fake_service import Gate
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

OK = {"error_code": "OK", "error_message": "OK"}


def available(version: str = "1") -> Any:
    """The status of a model that answers."""
    return {"model_version_status": [{"version": version, "state": "AVAILABLE", "status": OK}]}


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server whose models come and go."""
    with running_server(dialects=real_dialects(), has_hosting=True) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    """An HTTP client of that server."""
    with httpx.Client(base_url=server.url) as client:
        yield client


def test_the_status_of_every_model_is_told_to_the_byte(server: RunningServer, client: httpx.Client) -> None:
    server.hosting.failures["broken"] = EngineFailed("no weights")
    server.hosting.gates["slow"] = Gate()
    client.post("/models?url=two&model_version=2")
    for name in ("broken", "slow"):
        client.post(f"/models?url={name}&synchronous=false")
    while not {"broken", "slow"} <= set((answer := client.get("/v1/config")).json()) or "no weights" not in answer.text:
        pass
    ok = '{"error_code":"OK","error_message":"OK"}'
    models = {
        "fake": f'{{"version":"1","state":"AVAILABLE","status":{ok}}}',
        "two": f'{{"version":"2","state":"AVAILABLE","status":{ok}}}',
        "slow": f'{{"version":"1","state":"LOADING","status":{ok}}}',
        "broken": '{"version":"1","state":"LOADING","status":{"error_code":"UNKNOWN","error_message":"no weights"}}',
    }
    expected = ",".join(f'"{name}":{{"model_version_status":[{status}]}}' for name, status in models.items())
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.text == f"{{{expected}}}"


def test_the_status_is_there_also_where_models_stay() -> None:
    with running_server(dialects=real_dialects()) as server:
        assert httpx.get(f"{server.url}/v1/config").json() == {"fake": available()}


def test_a_reload_serves_what_the_store_holds_and_says_whether_that_was_new(
    server: RunningServer, client: httpx.Client
) -> None:
    server.hosting.store = {"a": "/opt/ml/models/a", "b": "/opt/ml/models/b"}
    answer = client.post("/v1/config/reload")
    assert (answer.status_code, answer.json()) == (201, {"a": available(), "b": available()})
    assert [model["id"] for model in client.get("/v3/models").json()["data"]] == ["a", "b"]
    answer = client.post("/v1/config/reload", content=b"")
    assert (answer.status_code, answer.json()) == (200, {"a": available(), "b": available()})
    server.hosting.store = {"a": "/opt/ml/models/a2"}
    answer = client.post("/v1/config/reload", json={})
    assert (answer.status_code, answer.json()) == (201, {"a": available()})
    assert server.hosting.journal.lines[-3:] == ["load a", "replaced a", "left a"]


def test_without_a_store_nothing_is_unloaded(client: httpx.Client) -> None:
    answer = client.post("/v1/config/reload")
    assert (answer.status_code, answer.json()) == (200, {"fake": available()})


def test_what_failed_is_told_and_the_rest_was_done(server: RunningServer, client: httpx.Client) -> None:
    server.hosting.store = {"a": "/opt/ml/models/a", "b": "/opt/ml/models/b"}
    server.hosting.failures["a"] = EngineFailed("no weights")
    answer = client.post("/v1/config/reload")
    text = "Reloading models versions failed. Check server logs for more info. a: no weights"
    assert (answer.status_code, answer.json()) == (500, {"error": text})
    assert client.get("/v1/config").json()["b"] == available()


@table(
    ("error", "status"), [(Conflict("The models are already being reloaded"), 409), (NoMemory("a needs 2 GiB"), 507)]
)
def test_a_reload_that_is_refused_is_told_in_that_servers_shape(
    server: RunningServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    async def refuse(sources: object) -> None:
        raise error

    server.hosting.store = {"a": "/opt/ml/models/a"}
    monkeypatch.setattr(server.hosting, "sync", refuse)
    answer = client.post("/v1/config/reload")
    assert (answer.status_code, answer.json()) == (status, {"error": str(error)})


def test_a_store_that_cannot_be_read_is_told(
    server: RunningServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise PermissionError(13, "Permission denied", "/opt/ml/models")

    monkeypatch.setattr(server.hosting, "stored", refuse)
    answer = client.post("/v1/config/reload")
    text = "Config file not found or cannot open. [Errno 13] Permission denied: '/opt/ml/models'"
    assert (answer.status_code, answer.json()) == (500, {"error": text})


def test_its_paths_are_its_own_below_openais(client: httpx.Client) -> None:
    for method, path in (("DELETE", "/v1/config"), ("GET", "/v1/config/reload"), ("GET", "/v1/config/other")):
        body = client.request(method, path).json()
        assert isinstance(body["error"], str)
    assert isinstance(client.get("/v1/configuration").json()["error"], dict)
