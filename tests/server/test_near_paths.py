"""A slip in any path that is served: the answer has the shape of the API whose path was meant, and names the right one."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from dragoman.errors import UnknownPath
from dragoman.server.api import HttpCall
from dragoman.server.apis import all_apis
from dragoman.server.endpoints import Endpoints, Route, RouteTable
from dragoman.server.registry import ModelRegistry
from dragoman.server.security.gate import Gate
from tests.support.live_routes import live_operations
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

PATHS = sorted({operation.path for operation in live_operations()})
TABLE = RouteTable([Route(path) for path in PATHS])


def slips(path: str) -> Iterator[str]:
    """The path with its last character left out, written twice, or with an underscore for a hyphen."""
    yield path[:-1]
    yield path + path[-1]
    yield path.replace("-", "_")
    yield f"{path}s"


MISSPELLED = [
    (slip, path)
    for path in PATHS
    if path != "/" and "{" not in path
    for slip in slips(path)
    if slip != "/" and TABLE.match(slip) is None
]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    with running_server(dialects=real_dialects(), has_hosting=True) as server:
        yield server


def test_every_api_has_paths_to_mistake() -> None:
    prefixes = {slip.split("/")[1] for slip, _ in MISSPELLED}
    assert {"v1", "v2", "v3", "api", "invocation", "generat", "inf"} <= prefixes


def test_a_slip_is_told_the_path_that_was_meant(server: RunningServer, client: httpx.Client) -> None:
    endpoints = Endpoints(all_apis(), ModelRegistry(real_dialects()), Gate(0))
    wrong: list[tuple[str, str]] = []
    for slip, meant in MISSPELLED:
        answer = client.get(slip, headers={"x-request-id": "r"})
        http = HttpCall("GET", slip, b"", {"x-request-id": "r"}, request_id="r")
        error = UnknownPath(f"Unknown path {slip}: the nearest one is {meant}, GET /docs describes all")
        told = endpoints.owner(slip).error_reply(error, http)
        if (answer.status_code, answer.content) != (told.status, told.body):
            wrong.append((slip, answer.text))
    assert wrong == []


@table(
    ("path", "nearest"),
    [
        ("/v1/response", "/v1/responses"),
        ("/v1/message", "/v1/messages"),
        ("/v1/chat", "/v1/chat/completions"),
        ("/v3/chat/", "/v3/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/messages/count-tokens", "/v1/messages/count_tokens"),
        ("/anthropic/v1/messages", "/v1/messages"),
        ("/v1/complete", "/v1/completions"),
        ("/v2/ready", "/v2/health/ready"),
        ("/ready", "/v2/health/ready"),
    ],
)
def test_what_clients_with_their_own_words_get_wrong(client: httpx.Client, path: str, nearest: str) -> None:
    answer = client.post(path, json={}, headers={"anthropic-version": "2023-06-01"})
    assert answer.status_code == 404
    assert f"the nearest one is {nearest}," in answer.text


OPENAI = ["error.code", "error.message", "error.param", "error.type"]
SHAPES = [
    ("/v1/response", "/v1/responses", OPENAI),
    ("/v1/chat/completion", "/v1/chat/completions", OPENAI),
    ("/v1/embedding", "/v1/embeddings", OPENAI),
    ("/v1/reranks", "/v1/rerank", OPENAI),
    ("/v1/model", "/v1/models", OPENAI),
    ("/v1/messages/count", "/v1/messages/count_tokens", ["error.message", "error.type", "request_id", "type"]),
    ("/v3/response", "/v3/responses", ["error"]),
    ("/v3/embedding", "/v3/embeddings", ["error"]),
    ("/v3/rerankers", "/v3/rerank", ["error"]),
    ("/v2/health/alive", "/v2/health/live", ["error"]),
    ("/v1/config/load", "/v1/config/reload", ["error"]),
    ("/tokenize/", "/tokenize", OPENAI),
    ("/api/chat/completions", "/api/v0/chat/completions", ["error"]),
    ("/api/embed/all", "/api/embed", ["error"]),
    ("/generate/it", "/generate", ["error", "error_type"]),
    ("/score/all", "/score", None),
    ("/debug/request", "/debug/requests", ["error"]),
    ("/server/metrics/all", "/server/metrics", ["error"]),
    ("/explain/this", "/explain", ["error"]),
    ("/embed/all", "/embed", None),
    ("/rerank/all", "/rerank", None),
    ("/invocation", "/invocations", ["code", "message", "type"]),
    ("/v4/chat/completions", "/v1/chat/completions", ["code", "message", "type"]),
]
"""A path that there is not, the nearest one, and the names in the answer of the API that is meant; None: the owner's own."""


def names_in(body: object, above: str = "") -> Iterator[str]:
    """The names of all values that are no objects, with those of the objects around them."""
    if isinstance(body, dict):
        for name, value in body.items():
            yield from names_in(value, f"{above}.{name}" if above else name)
    else:
        yield above


@table(("path", "nearest", "names"), SHAPES)
def test_an_unknown_path_is_told_in_the_shape_of_the_api_that_is_meant(
    client: httpx.Client, path: str, nearest: str, names: list[str] | None
) -> None:
    answer = client.post(path, json={})
    assert answer.status_code == 404
    assert f"Unknown path {path}: the nearest one is {nearest}," in answer.text
    assert names is None or sorted(names_in(answer.json())) == names


def test_every_prefix_of_every_api_tells_what_is_near_it(client: httpx.Client) -> None:
    owned = [prefix for api in all_apis() for prefix in api.owns if prefix not in ("", "/")]
    assert len(owned) > 20
    for prefix in owned:
        path = f"{prefix}/no-such-thing/at-all"
        answer = client.post(path, json={})
        if TABLE.match(path) is not None:  # a name may stand there, slashes included
            continue
        assert answer.status_code == 404, path
        nearest = answer.text.split("the nearest one is ")[1].split(",")[0]
        assert nearest.split("/")[1] == prefix.split("/")[1], path


@table(
    ("path", "params"),
    [
        ("/a/b/versions/c/infer", {"name": "a/b", "version": "c"}),
        ("/a/versions/b/versions/c/infer", {"name": "a/versions/b", "version": "c"}),
        ("/a/versions//infer", None),
        ("///versions/c/infer", {"name": "/", "version": "c"}),
        ("/versions/c/infer", None),
        ("/a\nb/versions/c/infer", {"name": "a\nb", "version": "c"}),
    ],
)
def test_names_in_paths_may_hold_slashes(path: str, params: dict[str, str] | None) -> None:
    matched = RouteTable([Route("/m/{name}/versions/{version}/infer")]).match(f"/m{path}")
    assert (None if matched is None else matched.path_params) == params


def test_a_path_of_any_length_is_looked_up_at_once() -> None:
    begun = time.process_time()
    for path in ("/v2/models/" + "/versions/" * 6_000, "/models/" + "a/adapters/b/update/" * 3_000):
        for end in ("x", "/", "infer", "/infer"):
            TABLE.match(path + end)
    assert time.process_time() - begun < 2
