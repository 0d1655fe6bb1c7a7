"""Keys at a server: what each opens, who is told to have called, and that keys change while it runs."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

import httpx
import pytest

from dragoman.server.app import ServerConfig
from dragoman.server.observation.record import new_request
from dragoman.server.observation.request_log import LOGGER_NAME
from dragoman.server.operations import Operation
from dragoman.server.run import ListenConfig
from dragoman.server.security.callers import KEY_SCOPES, Limits, Scope
from dragoman.server.security.keyring import KeySources
from dragoman.types import GenerationEvent, GenerationRequest, PromptInfo
from tests.support.every_api import filled
from tests.support.fake_service import FakeService, note
from tests.support.live_routes import live_operations
from tests.support.patience import PATIENCE_S
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

KEYS = "".join(f"{scope}-only: k-{scope} scopes={scope}\n" for scope in KEY_SCOPES) + "all: k-all\n"

OPEN = {
    ("GET", "/"), ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/ping"), ("POST", "/ping"), ("GET", "/health"),
    ("GET", "/v1/health"), ("GET", "/v2/health/live"), ("GET", "/v2/health/ready"), ("GET", "/playground"),
    ("GET", "/playground/{file}"),
}  # fmt: skip
"""What answers without a key. Anything else that is to, has to be thought of here as well."""


def config(path: Path, text: str = KEYS, **more: object) -> ServerConfig:
    path.write_text(text, encoding="utf-8")
    return ServerConfig(key_sources=KeySources(key_file=path), **more)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def status(client: httpx.Client, operation: Operation, key: str = "") -> int:
    """What is answered, by the container if SageMaker's envelope is around it."""
    headers = {"x-api-key": key} if key else {}
    body = b"{}" if operation.body else None
    answer = client.request(operation.method, filled(operation.path), headers=headers, content=body)
    is_enveloped = answer.headers.get("x-amzn-errortype") == "ModelError"
    return int(answer.json()["OriginalStatusCode"]) if is_enveloped else answer.status_code


def test_every_operation_has_a_scope() -> None:
    operations = live_operations()
    assert {(one.method, one.path) for one in operations if one.scope is Scope.OPEN} == OPEN
    assert {one.scope for one in operations} == set(Scope)


CALLERS_OWN = (
    "/v1/responses/{response_id}",
    "/v3/responses/{response_id}",
    "/api/delete",
    "/v1/messages/batches/{name}",
    "/v1/files/{file_id}",
)
"""What a key deletes of its own; and what nobody can, and says so."""


def test_what_loads_and_unloads_is_management() -> None:
    """A new operation that changes what is served has to be of that scope."""
    changing = [one for one in live_operations() if one.method in ("PUT", "DELETE") or one.needs_hosting]
    changing = [one for one in changing if one.path not in CALLERS_OWN]
    changing += [one for one in live_operations() if "adapter" in one.path or one.path == "/api/pull"]
    assert changing
    assert {one.scope for one in changing} == {Scope.MANAGEMENT}


def test_each_key_opens_what_its_scopes_are_for_and_nothing_else(path: Path) -> None:
    with (
        running_server(config(path), has_hosting=True) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client,
    ):
        for operation in sorted(live_operations(), key=lambda one: one.method == "DELETE"):
            is_open = operation.scope is Scope.OPEN
            assert (status(client, operation) == 401) is not is_open, operation.path
            assert (status(client, operation, "k-wrong") == 401) is not is_open, operation.path
            for scope in KEY_SCOPES:
                if scope is not operation.scope:
                    assert (status(client, operation, f"k-{scope}") == 403) is not is_open, operation.path
            if operation.method != "DELETE":
                assert status(client, operation, f"k-{operation.scope}") not in (401, 403)
                assert status(client, operation, "k-all") not in (401, 403)


def test_a_scope_may_be_left_open(path: Path) -> None:
    with running_server(config(path, open_scopes=frozenset({Scope.METRICS}))) as server:
        assert httpx.get(f"{server.url}/metrics").status_code == 200
        assert httpx.get(f"{server.url}/v1/models").status_code == 401


def test_the_documents_security_names_the_scope(path: Path) -> None:
    with running_server(config(path, open_scopes=frozenset({Scope.METRICS}))) as server:
        paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
        assert paths["/v1/models"]["get"]["security"][0] == {"bearer": ["inference"]}
        assert paths["/debug/requests"]["get"]["security"][1] == {"api-key": ["debug"]}
        assert "security" not in paths["/metrics"]["get"]


def test_the_log_names_the_caller_and_never_the_key(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with running_server(config(path, log_requests="text")) as server:
        for key, wanted in (("k-all", 200), ("k-metrics", 403), ("k-wrong", 401)):
            headers = {"authorization": f"Bearer {key}"}
            assert httpx.post(f"{server.url}/v1/completions", json={}, headers=headers).status_code == wanted
    lines = [record.getMessage() for record in caplog.records if record.name == LOGGER_NAME]
    assert [("caller=all" in line, "caller=metrics-only" in line) for line in lines] == [
        (True, False),
        (False, True),
        (False, False),
    ]
    assert "k-" not in "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("dragoman"))


def wait_for(condition: object, what: str) -> None:
    assert callable(condition)
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, what


def opens(server: RunningServer, key: str) -> bool:
    return httpx.get(f"{server.url}/v1/models", headers={"x-api-key": key}).status_code == 200


def test_keys_change_while_the_server_runs(path: Path) -> None:
    with running_server(config(path, "old"), ListenConfig(port=0, reload_s=0.02)) as server:
        assert opens(server, "old")
        path.write_text("new-key", encoding="utf-8")
        wait_for(lambda: opens(server, "new-key"), "the new key was not read")
        assert not opens(server, "old")


def test_keys_change_at_once_when_the_server_is_told(path: Path) -> None:
    with running_server(config(path, "old"), ListenConfig(port=0, reload_s=3600)) as server:
        path.write_text("new-key", encoding="utf-8")
        assert opens(server, "old")
        server.http.reload()
        wait_for(lambda: opens(server, "new-key"), "the new key was not read")


@table("text", ["", "alice: s3cret and more", None])
def test_old_keys_hold_while_the_file_is_wrong(path: Path, text: str | None, caplog: pytest.LogCaptureFixture) -> None:
    with running_server(config(path, "old"), ListenConfig(port=0, reload_s=0.02)) as server:
        if text is None:
            path.unlink()
        else:
            path.write_text(text, encoding="utf-8")
        wait_for(lambda: "keys were not read anew, the old ones still hold" in caplog.text, "nobody said so")
        assert opens(server, "old")
        assert "s3cret" not in caplog.text
        path.write_text("mended", encoding="utf-8")
        wait_for(lambda: opens(server, "mended"), "the mended file was not read")


def test_a_caller_who_asks_too_often_is_told_when_to_come_back(path: Path) -> None:
    text = "alice: k-alice requests-per-minute=2\nbob: k-bob\n"
    with running_server(config(path, text)) as server:

        def ask(key: str) -> httpx.Response:
            return httpx.post(f"{server.url}/v1/completions", json={}, headers={"x-api-key": key})

        first, second, third = (ask("k-alice") for _ in range(3))
        assert (first.status_code, second.status_code, third.status_code) == (200, 200, 429)
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert 0 < float(second.headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 60
        assert 1 <= int(third.headers["retry-after"]) <= 30
        assert third.headers["x-ratelimit-remaining-requests"] == "0"
        assert third.json()["kind"] == "rate_limited"
        other = ask("k-bob")
        assert other.status_code == 200
        assert not any(name.startswith("x-ratelimit") for name in other.headers)
        assert httpx.get(f"{server.url}/ping", headers={"x-api-key": "k-alice"}).status_code == 200


def test_usual_limits_are_those_of_whom_the_file_says_none(path: Path) -> None:
    path.write_text("alice: k-alice\nbob: k-bob requests-per-minute=9\n", encoding="utf-8")
    sources = KeySources(key_file=path, usual=Limits(1, None))
    with running_server(ServerConfig(key_sources=sources)) as server:

        def told(key: str) -> str:
            return httpx.get(f"{server.url}/v1/models", headers={"x-api-key": key}).headers[
                "x-ratelimit-limit-requests"
            ]

        assert (told("k-alice"), told("k-bob")) == ("1", "9")


class CountingService(FakeService):
    """Notes in the call's record what a real service would."""

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        record = new_request(request.request_id, 1)
        record.has_prompt(PromptInfo("secret prompt", tuple(range(15))))
        async with aclosing(super().stream(request)) as events:
            async for event in events:
                note(record, event)
                yield event


@contextmanager
def counting(config: ServerConfig) -> Iterator[RunningServer]:
    with running_server(config) as server:
        server.add_model("counted", CountingService())
        yield server


def test_tokens_count_when_a_call_has_ended(path: Path) -> None:
    with counting(config(path, "alice: k tokens-per-minute=10")) as server:

        def ask() -> httpx.Response:
            headers = {"x-api-key": "k", "model_name": "counted"}
            return httpx.post(f"{server.url}/invocations", json={"max_tokens": 20}, headers=headers)

        first, second = ask(), ask()
        assert (first.status_code, first.headers["x-ratelimit-remaining-tokens"]) == (200, "10")
        assert second.status_code == 429
        assert 25 < int(second.headers["retry-after"]) < 600  # at least five of the next minute's were used as well


def test_prompts_are_not_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for shows in (False, True):
        caplog.clear()
        with counting(config(path, log_requests="json", log_prompts=shows)) as server:
            headers = {"x-api-key": "k-all", "model_name": "counted"}
            answer = httpx.post(f"{server.url}/invocations", json={"max_tokens": 2}, headers=headers)
            assert answer.status_code == 200
        assert ("secret prompt" in caplog.text) is shows
