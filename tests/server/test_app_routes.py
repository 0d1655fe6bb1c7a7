"""Routes, methods, models, keys and the headers that every answer carries, over real HTTP."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any
from uuid import RFC_4122, UUID

import httpx

from dragoman.server.apis import all_apis
from dragoman.server.app import ServerConfig
from dragoman.server.endpoints import Endpoints
from dragoman.server.registry import ModelRegistry
from dragoman.server.security.cors import CorsRules
from dragoman.server.security.gate import Gate
from tests.support.fake_service import FakeService
from tests.support.line_dialect import line_dialects
from tests.support.live_routes import live_operations
from tests.support.running_server import RunningServer, post_bytes, read_to_end, read_until, running_server
from tests.support.tables import table

BROKEN = b"{"  # each line dialect names itself in its errors, so a broken body tells which one was asked

ROUTES = [
    ("/invocations", "lmi"),
    ("/predictions/fake", "lmi"),
    ("/predictions/model", "lmi"),
    ("/models/fake/invoke", "lmi"),
    ("/v1/chat/completions", "lmi.v1_chat"),
    ("/v1/completions", "openai.completions"),
    ("/v3/chat/completions", "ovms.chat"),
    ("/v3/completions", "ovms.completions"),
    ("/api/generate-one", "text"),
    ("/api/generate-batch", "text"),
    ("/", "tgi.root"),
    ("/generate", "tgi"),
    ("/generate_stream", "tgi"),
]


@table(("path", "dialect"), ROUTES, ids=[path for path, _ in ROUTES])
def test_each_inference_route_speaks_its_dialect(client: httpx.Client, path: str, dialect: str) -> None:
    answer = client.post(path, content=BROKEN)
    assert answer.status_code == 400
    assert answer.json()["dialect"] == dialect


@table(
    ("body", "dialect"),
    [
        ({"inputs": "x"}, "lmi"),
        ({"messages": []}, "lmi.chat"),
        ({"prompt": "x"}, "lmi.completions"),
        ({"inputs": "x", "prompt": "y"}, "lmi"),
        ({}, "lmi"),
        ([], "lmi"),
    ],
    ids=str,
)
def test_the_body_decides_the_dialect_on_lmi_routes(body: Any, dialect: str) -> None:
    with running_server() as server:
        server.admission.drain()  # every call is refused, in the words of the dialect that was asked
        answer = httpx.post(f"{server.url}/invocations", json=body)
        assert answer.json()["dialect"] == dialect


@table(
    ("path", "body", "headers"),
    [
        ("/invocations?model_name=other", {}, {}),
        ("/invocations", {}, {"model_name": "other"}),
        ("/invocations?model_name=other", {}, {"model_name": "fake"}),
        ("/invocations?model_name=second", {}, {}),
        ("/predictions/other", {}, {}),
        ("/predictions/org/other", {}, {}),
        ("/models/other/invoke", {}, {}),
        ("/models/org%2Fother/invoke", {}, {}),
        ("/v1/completions", {"model": "other"}, {}),
        ("/v1/chat/completions", {"model": "org/other"}, {}),
        ("/v3/completions", {"model": "second"}, {}),
        ("/api/generate-one?model_name=other", {}, {}),
    ],
)
def test_a_call_reaches_the_model_it_names(path: str, body: Any, headers: Mapping[str, str]) -> None:
    with running_server() as server:
        other = FakeService()
        server.add_model("other", other, "second", "org/other")
        answer = httpx.post(f"{server.url}{path}", json=body, headers=headers)
        assert answer.status_code == 200
        assert len(other.requests) == 1
        assert server.service.requests == []


@table("name", [None, "", "default", "dummy", "tgi", "lmi", "model", "fake", "nickname"])
@table("path", ["/v1/completions", "/v3/chat/completions"])
def test_placeholder_names_mean_the_default_model(client: httpx.Client, path: str, name: str | None) -> None:
    assert client.post(path, json={"model": name}).status_code == 200


@table(
    ("path", "body", "dialect"),
    [
        ("/invocations?model_name=nobody", {}, "lmi"),
        ("/predictions/nobody", {}, "lmi"),
        ("/models/nobody/invoke", {"messages": []}, "lmi.chat"),
        ("/v1/completions", {"model": "nobody"}, "openai.completions"),
        ("/v1/chat/completions", {"model": "nobody"}, "lmi.v1_chat"),
        ("/v3/completions", {"model": "nobody"}, "ovms.completions"),
        ("/api/generate-batch?model_name=nobody", {}, "text"),
    ],
)
def test_an_unknown_model_is_404_in_the_dialects_shape(
    client: httpx.Client, path: str, body: Any, dialect: str
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 404
    assert answer.json()["dialect"] == dialect
    assert "nobody" in answer.json()["message"]


@table("name", ["nobody", "nickname2"])
def test_an_unknown_model_is_told_which_ones_there_are(client: httpx.Client, name: str) -> None:
    for method, path in (("POST", "/v1/completions"), ("GET", f"/v1/models/{name}"), ("GET", f"/models/{name}")):
        message = client.request(method, path, json={"model": name}).json()["message"]
        assert "(served: fake, nickname)" in message


@table(
    ("path", "nearest"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/completions", "/v1/completions"),
        ("/v3/chat/complete", "/v3/chat/completions"),
        ("/invocation", "/invocations"),
        ("/api/generate_one", "/api/generate-one"),
        ("/api/foo", "/api/show"),
        ("/v1/model", "/v1/models"),
        ("/heath", "/health"),
    ],
)
def test_an_unknown_path_is_404_and_told_the_nearest_one(client: httpx.Client, path: str, nearest: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        answer = client.request(method, path)
        assert answer.status_code == 404
        assert answer.json()["kind"] == "unknown_path"
        assert f"Unknown path {path}: the nearest one is {nearest}," in answer.json()["message"]


def test_an_endless_unknown_path_is_told_shortly_and_soon(client: httpx.Client) -> None:
    answer = client.get("/" + "a/" * 30_000)
    assert answer.status_code == 404
    assert len(answer.content) < 500


def test_who_owns_an_endless_path_takes_no_longer_to_tell_than_of_any_other() -> None:
    endpoints = Endpoints(all_apis(), ModelRegistry(line_dialects()), Gate(1))
    # The fewest of some: the garbage collector's finalizers are lines of Python as well.
    work = [min(_num_lines(endpoints, "/" + "a/" * segments) for _ in range(3)) for segments in (10, 10_000)]
    assert work[0] == work[1]


def _num_lines(endpoints: Endpoints, path: str) -> int:
    """The lines of Python that telling the owner takes."""
    num_lines = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal num_lines
        num_lines += event == "line"
        return count

    sys.settrace(count)
    try:
        endpoints.owner(path)
    finally:
        sys.settrace(None)
    return num_lines


OWNERS = [
    ("/v1", "openai.completions"),
    ("/v1/embedding", "openai.completions"),
    ("/v1/models/fake", "openai.completions"),
    ("/v1/chat/completions", "openai.completions"),
    ("/tokenize", "openai.completions"),
    ("/v1/config", "ovms.completions"),
    ("/v1/config/reload", "ovms.completions"),
    ("/v1/configs", "openai.completions"),
    ("/v3/anything", "ovms.completions"),
    ("/v3/completions", "ovms.completions"),
    ("/api/foo", "text"),
    ("/api/generate-one", "text"),
    ("/generate", "tgi"),
    ("/generate_stream", "tgi"),
    ("/info", "tgi"),
    ("/nowhere", "lmi"),
    ("/v11/models", "lmi"),
    ("/invocations", "lmi"),
    ("/models/fake", "lmi"),
    ("/endpoints/fake/nothing", "lmi"),
    ("/endpoints/fake/invocations", "lmi"),
]


@table(("path", "dialect"), OWNERS)
def test_who_owns_a_prefix_tells_that_there_is_no_such_path_or_method(
    client: httpx.Client, path: str, dialect: str
) -> None:
    answer = client.request("DELETE" if path != "/models/fake" else "PATCH", path)
    assert answer.status_code in (404, 405)
    assert answer.json()["dialect"] == dialect
    assert answer.json()["kind"] == ("unknown_path" if answer.status_code == 404 else "wrong_method")
    assert ("allow" in answer.headers) is (answer.status_code == 405)


@table(
    ("method", "path", "allow"),
    [
        ("GET", "/invocations", "OPTIONS, POST"),
        ("PUT", "/predictions/fake", "OPTIONS, POST"),
        ("DELETE", "/v1/models", "GET, HEAD, OPTIONS"),
        ("POST", "/models?url=/models/a&model_name=a", "GET, HEAD, OPTIONS"),
        ("PUT", "/models/fake?min_worker=2", "GET, HEAD, OPTIONS"),
        ("DELETE", "/models/fake", "GET, HEAD, OPTIONS"),
        ("POST", "/v1/models/fake", "GET, HEAD, OPTIONS"),
        ("PUT", "/", "GET, HEAD, OPTIONS, POST"),
        ("HEAD", "/invocations", "OPTIONS, POST"),
    ],
)
def test_a_wrong_method_is_405_and_names_the_right_ones(
    client: httpx.Client, method: str, path: str, allow: str
) -> None:
    answer = client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allow


@table(
    ("method", "path", "status", "words"),
    [
        ("GET", "/adapters", 400, "LoRA is not enabled."),
        ("POST", "/adapters?name=a&src=/a", 400, "LoRA is not enabled."),
        ("DELETE", "/adapters/a", 400, "LoRA is not enabled."),
        ("GET", "/models/fake/adapters", 400, "LoRA is not enabled."),
        ("POST", "/models/fake/adapters?name=a&src=/a", 400, "LoRA is not enabled."),
    ],
)
def test_that_a_model_has_no_adapters_is_said_in_lmis_shape(
    client: httpx.Client, method: str, path: str, status: int, words: str
) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()) == {"code", "type", "message"}
    assert answer.json()["code"] == status
    assert words in answer.json()["message"]


def test_options_tells_what_a_path_takes(client: httpx.Client) -> None:
    answer = client.options("/")
    assert (answer.status_code, answer.json(), answer.headers["allow"]) == (200, {}, "GET, HEAD, OPTIONS, POST")


READ = [
    operation.path for operation in live_operations() if operation.method == "GET" and "metrics" not in operation.path
]


@table("path", READ)
def test_head_gives_the_head_of_get(client: httpx.Client, path: str) -> None:
    path = path.replace("{name}", "fake")
    headers = {"x-request-id": "same", "accept-encoding": "identity"}
    head, whole = client.head(path, headers=headers), client.get(path, headers=headers)
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert head.headers.items() - {("date", head.headers.get("date"))} == whole.headers.items() - {
        ("date", whole.headers.get("date"))
    }
    assert int(head.headers["content-length"]) == len(whole.content) > 0


def test_the_head_of_an_error_has_no_body(server: RunningServer) -> None:
    with server.connect() as connection:
        for path in ("/nowhere", "/invocations"):
            connection.sendall(f"HEAD {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        connection.sendall(b"HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        heads = read_to_end(connection).split(b"\r\n\r\n")
    assert [head.partition(b"\r\n")[0].split()[1] for head in heads[:-1]] == [b"404", b"405", b"200"]
    assert heads[-1] == b""


@table("path", ["/invocations", "/nowhere", "/ping", "/v1/models/nobody"])
def test_every_answer_echoes_the_request_id_and_forbids_caching(client: httpx.Client, path: str) -> None:
    answer = client.request("POST" if path == "/invocations" else "GET", path, headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["cache-control"] == "no-cache; no-store, must-revalidate, private"
    assert answer.headers["pragma"] == "no-cache"
    assert answer.headers["expires"] == "Thu, 01 Jan 1970 00:00:00 UTC"


def test_without_a_request_id_each_answer_gets_a_fresh_one(client: httpx.Client) -> None:
    ids = {client.get("/ping").headers["x-request-id"] for _ in range(30)}
    assert len(ids) == 30
    assert {(str(UUID(one)) in ids, UUID(one).version, UUID(one).variant) for one in ids} == {(True, 4, RFC_4122)}


def test_a_request_id_that_is_too_long_is_replaced(client: httpx.Client) -> None:
    assert len(client.get("/ping", headers={"x-request-id": "x" * 5000}).headers["x-request-id"]) == 36


def test_sagemakers_inference_id_serves_as_request_id(client: httpx.Client) -> None:
    answer = client.get("/ping", headers={"X-Amzn-SageMaker-Inference-Id": "sm-7"})
    assert answer.headers["x-request-id"] == "sm-7"


@table("body", [{}, {"stream": True}, {"fails_at": "full"}], ids=["full", "stream", "error"])
def test_ignored_parameters_are_listed_in_a_header(client: httpx.Client, body: Mapping[str, Any]) -> None:
    names = ["plain", "größe", "a,b", "new\nline", *[f"p{number}" for number in range(30)]]
    answer = client.post("/invocations", json={**body, "ignored": names})
    listed = answer.headers["x-dragoman-ignored"].split(",")
    assert listed[:4] == ["plain", "gr%C3%B6%C3%9Fe", "a%2Cb", "new%0Aline"]
    assert len(listed) == 20


def test_answers_without_ignored_parameters_lack_the_header(client: httpx.Client) -> None:
    assert "x-dragoman-ignored" not in client.post("/invocations", json={}).headers


class TestKeys:
    """With API keys configured."""

    CONFIG = ServerConfig(api_keys=frozenset({"secret", "schlüssel"}))

    @table("header", [None, "Bearer wrong", "secret", "Basic secret", "Bearer", "Bearer sécret"])
    def test_a_missing_or_wrong_key_is_401(self, header: str | None) -> None:
        headers = {} if header is None else {b"authorization": header.encode()}
        with running_server(self.CONFIG) as server:
            for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/info")):
                answer = httpx.request(method, f"{server.url}{path}", headers=headers)
                assert answer.status_code == 401
                assert answer.json()["kind"] == "unauthorized"
                assert answer.headers["www-authenticate"] == "Bearer"

    @table("key", ["secret", "schlüssel"])
    @table("header", ["authorization", "api-key", "x-api-key"])
    def test_each_key_opens_wherever_clients_put_it(self, header: str, key: str) -> None:
        headers = {header.encode(): (f"Bearer {key}" if header == "authorization" else key).encode()}
        with running_server(self.CONFIG) as server:
            assert httpx.post(f"{server.url}/v1/completions", json={}, headers=headers).status_code == 200
            assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200

    @table("header", ["api-key", "x-api-key", "authorization"])
    def test_a_wrong_key_opens_nothing_wherever_it_is(self, header: str) -> None:
        with running_server(self.CONFIG) as server:
            for text in ("wrong", "Bearer wrong", "", "Bearer", "secret2", "secret secret"):
                assert httpx.get(f"{server.url}/v1/models", headers={header: text}).status_code == 401

    def test_one_right_key_among_several_is_enough(self) -> None:
        """Clients of OpenAI always send a bearer token, a made-up one where the key goes elsewhere."""
        headers = {"authorization": "Bearer unused", "x-api-key": "secret"}
        with running_server(self.CONFIG) as server:
            assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200

    @table(("path", "dialect"), [(path, dialect) for path, dialect in ROUTES if path != "/models"])
    def test_who_owns_the_prefix_tells_that_the_key_is_wrong(self, path: str, dialect: str) -> None:
        owner = {"lmi.v1_chat": "openai.completions", "tgi.root": "tgi", "ovms.chat": "ovms.completions"}.get(
            dialect, dialect
        )
        with running_server(self.CONFIG) as server:
            answer = httpx.post(f"{server.url}{path}", json={})
            assert (answer.status_code, answer.json()["dialect"]) == (401, owner)

    def test_health_needs_no_key(self) -> None:
        with running_server(self.CONFIG) as server:
            for path in ("/", "/ping", "/health", "/v2/health/live", "/v2/health/ready"):
                assert httpx.get(f"{server.url}{path}").status_code == 200

    def test_keys_do_not_show_in_the_configurations_text(self) -> None:
        assert "secret" not in repr(self.CONFIG)


class TestBodySize:
    """With a limit of 1,000 bytes."""

    CONFIG = ServerConfig(max_request_size_bytes=1000)

    def test_a_body_at_the_limit_is_read(self) -> None:
        body = b"{" + b" " * 998 + b"}"
        with running_server(self.CONFIG) as server:
            assert httpx.post(f"{server.url}/invocations", content=body).status_code == 200

    def test_a_body_over_the_limit_is_413_in_the_dialects_shape(self) -> None:
        with running_server(self.CONFIG) as server:
            answer = httpx.post(f"{server.url}/v1/completions", content=b" " * 1001)
            assert answer.status_code == 413
            assert answer.json()["dialect"] == "openai.completions"
            assert "1001" in answer.json()["message"]
            assert "1000" in answer.json()["message"]

    def test_a_declared_length_over_the_limit_is_refused_before_the_body_arrives(self) -> None:
        with running_server(self.CONFIG) as server, server.connect() as connection:
            connection.sendall(b"POST /invocations HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n")
            assert read_until(connection, b"}").startswith(b"HTTP/1.1 413 ")

    def test_a_chunked_body_over_the_limit_is_refused_while_it_arrives(self) -> None:
        piece = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
        with running_server(self.CONFIG) as server, server.connect() as connection:
            connection.sendall(b"POST /invocations HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + piece)
            answer = read_until(connection, b"}")  # the body never ends, and yet there is an answer
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert b"connection: close" in answer

    def test_a_client_that_uploads_first_and_reads_later_still_sees_the_refusal(self) -> None:
        with running_server(self.CONFIG) as server, server.connect() as connection:
            connection.sendall(
                post_bytes("/invocations", b" " * 1_000_000)
            )  # more than is read, less than the system holds
            assert read_to_end(connection).startswith(b"HTTP/1.1 413 ")


class TestExpect:
    """A client that asks before it sends its body."""

    def test_it_is_told_to_go_on(self, server: RunningServer) -> None:
        head, _, body = post_bytes("/invocations", b"{}", "expect: 100-continue").partition(b"\r\n\r\n")
        with server.connect() as connection:
            connection.sendall(head + b"\r\n\r\n")
            assert read_until(connection, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(body)
            assert read_until(connection, b"Deep").startswith(b"HTTP/1.1 200 ")

    def test_it_is_refused_before_it_sends_too_much(self) -> None:
        with running_server(TestBodySize.CONFIG) as server, server.connect() as connection:
            connection.sendall(
                b"POST /invocations HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 5000\r\n\r\n"
            )
            assert read_until(connection, b"}").startswith(b"HTTP/1.1 413 ")


def test_a_body_split_over_many_pieces_is_put_together(server: RunningServer) -> None:
    request = post_bytes("/invocations", b'{"prompts": ["one"], "max_tokens": 1}', "connection: close")
    with server.connect() as connection:
        for position in range(0, len(request), 7):
            connection.sendall(request[position : position + 7])
        assert read_to_end(connection).endswith(b"0: Deep\n")


def test_a_deeply_nested_body_is_the_clients_error(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", content=b'{"model": ' + b"[" * 200_000)
    assert answer.status_code == 400


def test_cors_headers_are_sent_when_configured() -> None:
    with running_server(ServerConfig(cors=CorsRules("*", headers="authorization"))) as server:
        headers = httpx.options(f"{server.url}/v1/completions").headers
        assert headers["access-control-allow-origin"] == "*"
        assert headers["access-control-allow-headers"] == "authorization"
        assert "access-control-allow-methods" not in headers


@table("path", ["/v1/chat/completions", "/invocations", "/api/generate-one", "/models/fake"])
def test_a_preflight_passes_without_a_key(path: str) -> None:
    config = ServerConfig(
        api_keys=frozenset({"secret"}),
        cors=CorsRules("https://page.example", "POST", "authorization, content-type"),
    )
    asked = {
        "origin": "https://page.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    with running_server(config) as server:
        answer = httpx.options(server.url + path, headers=asked)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        assert answer.headers["access-control-allow-methods"] == "POST"
        assert answer.headers["access-control-allow-headers"] == "authorization, content-type"
        refused = httpx.post(server.url + path, headers={"origin": "https://page.example"})
        assert refused.status_code in (401, 405)
        assert refused.headers["access-control-allow-origin"] == "https://page.example"
