"""Which model answers, by the name in a body: LMI's shapes overlook unknown names, all others refuse them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT, COMPLETION = {"messages": MESSAGES}, {"prompt": "Hi"}
LMI_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/invocations", CHAT),
    ("/invocations", COMPLETION),
    ("/predictions/fake", CHAT),
    ("/predictions/model", COMPLETION),
    ("/endpoints/any/invocations", CHAT),
]
CURL = {"user-agent": "curl/8.5.0"}
BEARER = {"authorization": "Bearer none"}


@pytest.fixture(scope="module")
def one() -> Iterator[httpx.Client]:
    with running_server(dialects=real_dialects()) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def several() -> Iterator[httpx.Client]:
    with running_server(dialects=real_dialects()) as server:
        add(server, "other", alias="second")
        with httpx.Client(base_url=server.url, timeout=30) as client:
            yield client


def add(server: RunningServer, name: str, alias: str) -> None:
    """Serve one more model, with dialects of its own."""
    dialects = real_dialects(name=name, aliases=(alias,))
    first = server.registry.models[0]
    server.registry.add(replace(first, name=name, aliases=(alias,), dialects=dialects))


@table(("path", "body"), LMI_CALLS)
def test_in_lmis_shapes_an_unknown_name_means_the_only_model_and_is_reported(
    one: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    answer = one.post(path, json={**body, "model": "gpt-4"}, headers=CURL)
    assert (answer.status_code, answer.json()["model"]) == (200, "fake")
    assert answer.headers["x-dragoman-ignored"] == "model"


@table("name", ["fake", "", "default", "dummy", None])
@table(("path", "body"), LMI_CALLS)
def test_a_name_that_means_the_model_is_not_reported(
    one: httpx.Client, path: str, body: dict[str, Any], name: str | None
) -> None:
    answer = one.post(path, json={**body, "model": name})
    assert (answer.status_code, answer.json()["model"]) == (200, "fake")
    assert "x-dragoman-ignored" not in answer.headers


@table(
    ("path", "body", "headers"),
    [
        ("/v1/chat/completions", CHAT, BEARER),
        ("/v1/completions", COMPLETION, {}),
        ("/v3/chat/completions", CHAT, {}),
        ("/v3/completions", COMPLETION, {}),
        ("/tokenize", COMPLETION, {}),
    ],
)
def test_elsewhere_an_unknown_name_is_refused_with_the_names_there_are(
    one: httpx.Client, path: str, body: dict[str, Any], headers: dict[str, str]
) -> None:
    answer = one.post(path, json={**body, "model": "gpt-4"}, headers=headers)
    assert answer.status_code == 404
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert "not found: gpt-4 (served: fake, nickname)" in message


@table(("path", "body"), [call for call in LMI_CALLS if "/p" not in call[0] and "/e" not in call[0]])
def test_a_server_with_several_models_refuses_unknown_names_in_lmis_shape(
    several: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    answer = several.post(path, json={**body, "model": "gpt-4"}, headers=CURL)
    assert answer.status_code == 404
    assert (answer.json()["code"], answer.json()["type"]) == (404, "ModelNotFoundException")
    assert "not found: gpt-4 (served: fake, nickname, other, second)" in answer.json()["message"]


@table("name", ["other", "second"])
@table(("path", "body"), [call for call in LMI_CALLS if "/p" not in call[0] and "/e" not in call[0]])
def test_a_server_with_several_models_answers_with_the_one_that_is_named(
    several: httpx.Client, path: str, body: dict[str, Any], name: str
) -> None:
    answer = several.post(path, json={**body, "model": name})
    assert (answer.status_code, answer.json()["model"]) == (200, name)
    assert "x-dragoman-ignored" not in answer.headers


def test_what_the_path_or_the_query_names_goes_before_what_the_body_names(several: httpx.Client) -> None:
    by_path = several.post("/predictions/other", json={**CHAT, "model": "fake"})
    by_query = several.post("/invocations", params={"model_name": "other"}, json={**CHAT, "model": "fake"})
    for answer in (by_path, by_query):
        assert (answer.status_code, answer.json()["model"]) == (200, "other")
        assert answer.headers["x-dragoman-ignored"] == "model"
