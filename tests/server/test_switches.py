"""What a client switches for one call, or the operator for all: strict reading, and answers that tell how long they took.

Asked of every operation of every API that generates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman.errors import InvalidParameter
from dragoman.server.api import HttpCall
from dragoman.server.app import ServerConfig
from dragoman.server.endpoints import dialect_of
from dragoman.server.http.fields import Switches, refuse_ignored
from dragoman.server.observation.record import RequestRecord, SequenceRecord, timings_of
from dragoman.server.operations import GenerateOperation, PoolingOperation
from dragoman.server.pooling.base import PoolingKind
from tests.support.every_api import APIS, dialects_of, filled
from tests.support.fake_pooling import FakePooling
from tests.support.real_dialects import fake_profile
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

PROFILE = fake_profile()
DIALECTS = dialects_of(PROFILE)
JSON = {"content-type": "application/json"}
STRICT, TIMINGS = {"x-dragoman-strict": "1"}, {"x-dragoman-timings": "1"}

OPERATIONS = [
    (api, operation)
    for api in APIS
    if api is not APIS[-1]  # the tests' own, which is served only where its name is listed
    for operation in api.operations
    if isinstance(operation, GenerateOperation) and not isinstance(operation, PoolingOperation)
]
GENERATING = [operation for _, operation in OPERATIONS]
IN_TRAILERS = ("/api/generate-one", "/api/generate", "/api/chat", "/v1/messages", "/v1/responses", "/v3/responses")
"""Where streams have timings: their events are counted and checked by their clients."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(dialects=DIALECTS) as running:
        yield running


def post(server: RunningServer, operation: GenerateOperation, body: Any, headers: dict[str, str]) -> httpx.Response:
    return httpx.post(
        f"{server.url}{filled(operation.path)}", content=json.dumps(body).encode(), headers=JSON | headers
    )


@table("operation", GENERATING, ids=lambda operation: operation.path)
def test_parameters_without_effect_are_errors_in_the_apis_own_shape(
    server: RunningServer, operation: GenerateOperation
) -> None:
    body = operation.example | {"colour": 1}
    lax = post(server, operation, body, {"x-dragoman-strict": "0"})
    assert lax.status_code in (200, 206)
    assert "colour" in lax.headers["x-dragoman-ignored"].split(",")
    num_asked = len(server.service.requests)
    strict = post(server, operation, body, STRICT)
    http = HttpCall("POST", filled(operation.path), json.dumps(body).encode(), dict(strict.request.headers))
    expected = dialect_of(operation, DIALECTS, http).error_reply(InvalidParameter("x", param="colour"), http)
    assert strict.status_code == expected.status
    assert strict.status_code in (400, 422, 424)  # 424: SageMaker's around the container's 400
    assert "colour" in strict.text
    assert len(server.service.requests) == num_asked
    assert post(server, operation, operation.example, STRICT).status_code in (200, 206)


def test_the_operator_decides_for_calls_that_say_nothing() -> None:
    body = {"prompt": "x", "max_tokens": 2, "colour": 1}
    with running_server(ServerConfig(switches=Switches(is_strict=True)), dialects=DIALECTS) as strict:
        answer = httpx.post(f"{strict.url}/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "colour")
        lax = httpx.post(f"{strict.url}/v1/completions", json=body, headers={"x-dragoman-strict": "0"})
        assert lax.status_code == 200


EMBED, SCORE, SPARSE = PoolingKind.EMBED, PoolingKind.SCORE, PoolingKind.SPARSE


def kind_for(path: str) -> PoolingKind:
    """A model that answers the path."""
    if "sparse" in path:
        return SPARSE
    return SCORE if any(word in path for word in ("score", "rerank", "predict", "classify")) else EMBED


ANSWERED = [
    (kind_for(operation.path), operation.path, example)
    for api in APIS
    for operation in api.operations
    if isinstance(operation, PoolingOperation)
    for example in [operation.example]
] + [
    (EMBED, "/invocations", {"inputs": "a"}),
    (EMBED, "/endpoints/fake/invocations", {"inputs": "a"}),
    (SCORE, "/predictions/fake", {"inputs": [{"key": "a", "value": "b"}]}),
    (SCORE, "/rerank", {"query": "a", "documents": ["b"]}),
]
"""Calls that are answered without generating."""


@pytest.fixture(scope="module")
def strict_servers() -> Iterator[dict[PoolingKind, RunningServer]]:
    """Servers of models that embed, score or weigh words, whose operator wants strict reading."""
    config = ServerConfig(switches=Switches(is_strict=True))
    with (
        running_server(config, dialects=dialects_of(fake_profile(pooling=FakePooling(EMBED)))) as embeds,
        running_server(config, dialects=dialects_of(fake_profile(pooling=FakePooling(SCORE)))) as scores,
        running_server(config, dialects=dialects_of(fake_profile(pooling=FakePooling(SPARSE)))) as weighs,
    ):
        yield {EMBED: embeds, SCORE: scores, SPARSE: weighs}


@table(("kind", "path", "body"), ANSWERED)
def test_the_operator_decides_for_calls_that_are_answered_without_generating(
    kind: PoolingKind, path: str, body: dict[str, Any], strict_servers: dict[PoolingKind, RunningServer]
) -> None:
    url, odd = f"{strict_servers[kind].url}{path}", body | {"colour": 1}
    assert httpx.post(url, json=body).status_code == 200
    refused = httpx.post(url, json=odd)
    assert refused.status_code in (400, 413, 422, 424)
    assert "colour" in refused.text
    lax = httpx.post(url, json=odd, headers={"x-dragoman-strict": "0"})
    assert lax.status_code == 200
    assert lax.headers["x-dragoman-ignored"] == "colour"


@table(("path", "body"), [("/api/generate", {"model": "fake"}), ("/api/chat", {"model": "fake"})])
def test_the_operator_decides_for_calls_that_only_load(path: str, body: dict[str, Any]) -> None:
    with running_server(ServerConfig(switches=Switches(is_strict=True)), dialects=DIALECTS) as strict:
        assert httpx.post(f"{strict.url}{path}", json=body).json()["done_reason"] == "load"
        for name, value in (("colour", 1), ("keep_alive", "5m"), ("options", {"num_ctx": 5})):
            answer = httpx.post(f"{strict.url}{path}", json=body | {name: value})
            assert answer.status_code == 400
            assert name in answer.json()["error"]


def test_a_switch_that_says_neither_is_refused(server: RunningServer) -> None:
    for name in ("x-dragoman-strict", "x-dragoman-timings"):
        answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"}, headers={name: "maybe"})
        assert answer.status_code == 400
        assert name in answer.json()["error"]["message"]


def test_many_names_do_not_make_a_long_error() -> None:
    with pytest.raises(InvalidParameter, match="and 980 more") as refused:
        refuse_ignored(["n" * 5000] * 1000)
    assert len(refused.value.message) < 3000


# --- timings ----------------------------------------------------------------------------------------------------------

KEYS = {
    "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms",
    "predicted_per_token_ms", "predicted_per_second", "queue_ms",
}  # fmt: skip


ALWAYS = ("/completion", "/completions", "/infill")
"""llama.cpp's operations tell them unasked."""


def blocks(answer: httpx.Response) -> list[dict[str, Any]]:
    """All blocks of timings in an answer's body, in order, whatever its framing; or the one in its header."""
    if "x-dragoman-timings" in answer.headers:
        return [json.loads(answer.headers["x-dragoman-timings"])]
    found: list[dict[str, Any]] = []
    decoder, text, place = json.JSONDecoder(), answer.content.decode("utf-8", "replace"), 0
    while (place := text.find('"timings":', place)) >= 0:
        place += len('"timings":')
        found.append(decoder.raw_decode(text, place)[0])
    return found


@table("is_stream", [True, False])
@table("operation", GENERATING, ids=lambda operation: operation.path)
def test_every_answer_tells_its_timings_once_where_they_are_asked_for(
    server: RunningServer, operation: GenerateOperation, is_stream: bool
) -> None:
    if filled(operation.path) in IN_TRAILERS and is_stream:
        return  # see below
    body = operation.example | {"stream": is_stream}
    path = f"{server.url}{filled(operation.path)}" + ("?stream=false" if operation.path == "/api/generate-one" else "")
    quiet = httpx.post(path, json=body)
    assert bool(blocks(quiet)) == (operation.path in ALWAYS)
    answer = httpx.post(path, json=body, headers=TIMINGS)
    assert answer.status_code in (200, 206)
    [block] = blocks(answer)
    assert set(block) == KEYS
    assert block["predicted_n"] > 0
    assert block["prompt_n"] > 0
    assert block["cache_n"] == 0
    assert server.service.traces[-1] is None


@table("path", IN_TRAILERS)
def test_what_has_no_room_in_its_stream_has_them_in_a_trailer(path: str, server: RunningServer) -> None:
    [operation] = [one for _, one in OPERATIONS if filled(one.path) == path]
    content = json.dumps(operation.example | {"stream": True}).encode()
    with server.connect() as connection:
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nhost: x\r\nte: trailers\r\nconnection: close\r\nx-dragoman-timings: 1\r\n"
            f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n".encode()
            + content
        )
        received = b""
        while piece := connection.recv(65536):
            received += piece
    head, _, rest = received.partition(b"\r\n\r\n")
    assert re.search(rb"trailer: .*x-dragoman-timings", head.lower())
    trailer = rest.rpartition(b"\r\n0\r\n")[2].decode()
    [line] = [line for line in trailer.split("\r\n") if line.startswith("x-dragoman-timings: ")]
    assert set(json.loads(line.partition(": ")[2])) == KEYS


def test_each_answer_of_an_array_has_its_own(server: RunningServer) -> None:
    body = {"inputs": ["a", "a b", "a b c"], "parameters": {"max_new_tokens": 3}}
    answer = httpx.post(f"{server.url}/invocations", json=body, headers=TIMINGS)
    assert [one["timings"]["prompt_n"] for one in answer.json()] == [1, 2, 3]


def test_a_stream_of_several_choices_has_them_in_its_last_chunk(server: RunningServer) -> None:
    body = {"prompt": ["a", "a b"], "n": 2, "max_tokens": 3, "stream": True}
    for more in ({}, {"stream_options": {"include_usage": True}}):
        answer = httpx.post(f"{server.url}/v1/completions", json=body | more, headers=TIMINGS)
        chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        assert [index for index, chunk in enumerate(chunks) if "timings" in chunk] == [len(chunks) - 1]
        assert chunks[-1]["timings"]["prompt_n"] == 3
        assert chunks[-1]["timings"]["predicted_n"] == 12


def test_the_operator_can_have_them_in_every_answer() -> None:
    with running_server(ServerConfig(switches=Switches(has_timings=True)), dialects=DIALECTS) as server:
        assert "timings" in httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 2}).json()
        off = httpx.post(
            f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 2}, headers={"x-dragoman-timings": "0"}
        )
        assert "timings" not in off.json()


def test_the_numbers_follow_from_the_record() -> None:
    record = RequestRecord(
        "a",
        begin_s=100.0,
        num_prompt_tokens=12,
        num_cached_tokens=2,
        queue_s=0.5,
        sequences=[
            SequenceRecord([101.0, 101.5, 102.0, 103.0], num_tokens=4, num_draft_tokens=3, num_accepted_tokens=1)
        ],
    )
    timings = timings_of([record])
    assert (timings.cache_n, timings.prompt_n, timings.predicted_n) == (2, 10, 4)
    assert (timings.prompt_ms, timings.prompt_per_token_ms, timings.prompt_per_second) == (500.0, 50.0, 20.0)
    assert (timings.predicted_ms, timings.predicted_per_token_ms, timings.predicted_per_second) == (2000.0, 500.0, 2.0)
    assert (timings.queue_ms, timings.draft_n, timings.draft_n_accepted) == (500.0, 3, 1)


def test_the_time_before_the_engine_had_it_is_not_the_prompts() -> None:
    """The engine counts its queue from when it got the request, which was fetched and tokenised before."""
    record = RequestRecord(
        "a", begin_s=100.0, pictured_s=105.0, prepared_s=105.1, queue_s=0.5, num_prompt_tokens=8,
        sequences=[SequenceRecord([106.0], num_tokens=1)],
    )  # fmt: skip
    assert timings_of([record]).prompt_ms == pytest.approx(400.0)


def test_what_never_began_took_no_time() -> None:
    timings = timings_of([RequestRecord("a", sequences=[SequenceRecord()])])
    assert (timings.prompt_ms, timings.prompt_per_second, timings.predicted_per_token_ms) == (0.0, None, None)
