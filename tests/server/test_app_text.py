"""The plain-text service over real HTTP: status, hold, trailers, cut connections, batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman.errors import CapacityError, EngineDead, EngineFailed
from dragoman.server.apis.text import TextDialect
from tests.support.fake_service import Gate, Script
from tests.support.line_dialect import line_dialects
from tests.support.running_server import RunningServer, post_bytes, read_to_end, read_until, running_server
from tests.support.tables import table

TEXT = " Deep learning is fun. 🍊"
ONE = b'{"id": "123", "prompt": "What is Deep Learning?", "maxLength": 50}'
CUT = b'{"id": "456", "prompt": "What is Deep Learning?", "maxLength": 4}'


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    """A server whose text dialect is the real one; its hold is longer than any test."""
    with running_server(dialects=line_dialects(text=TextDialect(hold_ms=60_000))) as server:
        yield server


@pytest.fixture
def hasty_server() -> Iterator[RunningServer]:
    """A server that does not wait for the outcome."""
    with running_server(dialects=line_dialects(text=TextDialect(hold_ms=0))) as server:
        yield server


def test_a_short_answer_carries_its_exact_status(client: httpx.Client) -> None:
    whole, cut = (client.post("/api/generate-one", content=content) for content in (ONE, CUT))
    assert (whole.status_code, whole.text) == (200, TEXT)
    assert (cut.status_code, cut.text) == (206, " Deep learning is fun")
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert whole.headers["transfer-encoding"] == "chunked"


def test_without_a_hold_the_status_is_206_and_the_trailers_are_exact(hasty_server: RunningServer) -> None:
    gate = Gate()
    hasty_server.service.script = Script(gates={2: gate})
    with hasty_server.connect() as connection:
        connection.sendall(post_bytes("/api/generate-one", ONE, "te: trailers", "connection: close"))
        head = read_until(connection, b"learning")
        assert head.startswith(b"HTTP/1.1 206 Partial Content\r\n")
        assert b"\r\ntrailer: X-Status, X-Finish-Reason\r\n" in head
        gate.open()
        assert read_to_end(connection).endswith(b"0\r\nx-status: 200\r\nx-finish-reason: eos\r\n\r\n")


def test_a_cut_answer_says_so_in_its_trailers(server: RunningServer) -> None:
    with server.connect() as connection:
        connection.sendall(post_bytes("/api/generate-one", CUT, "te: trailers", "connection: close"))
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 206 ")
    assert answer.endswith(b"0\r\nx-status: 206\r\nx-finish-reason: length\r\n\r\n")


def test_stream_false_waits_for_the_whole_text(hasty_server: RunningServer) -> None:
    answer = httpx.post(f"{hasty_server.url}/api/generate-one?stream=false", content=ONE)
    assert (answer.status_code, answer.text) == (200, TEXT)
    assert "transfer-encoding" not in answer.headers


def test_a_failure_before_the_head_has_a_status_and_one_line(server: RunningServer, client: httpx.Client) -> None:
    server.service.script = Script(failures={3: EngineFailed("the step\nfailed")})
    answer = client.post("/api/generate-one", content=ONE)
    assert (answer.status_code, answer.text) == (500, "the step failed\n")


def test_a_failure_after_the_head_closes_without_the_final_chunk(hasty_server: RunningServer) -> None:
    gate = Gate()
    hasty_server.service.script = Script(gates={2: gate}, failures={2: EngineFailed("broke")})
    with httpx.stream("POST", f"{hasty_server.url}/api/generate-one", content=ONE) as answer:
        assert answer.status_code == 206
        gate.open()
        with pytest.raises(httpx.RemoteProtocolError):
            answer.read()


def test_a_batch_is_an_array_in_request_order(client: httpx.Client) -> None:
    prompts = [{"id": "b", "prompt": "x", "maxLength": 50}, {"id": 1, "prompt": "y", "maxLength": 50}]
    answer = client.post("/api/generate-batch", json={"prompts": prompts})
    assert (answer.status_code, answer.json()) == (200, [{"id": "b", "data": TEXT}, {"id": 1, "data": TEXT}])


def test_a_batch_with_a_cut_text_is_206(client: httpx.Client) -> None:
    prompts = [{"id": 1, "prompt": "x"}, {"id": 2, "prompt": "y", "maxLength": 2}]
    answer = client.post("/api/generate-batch", json={"prompts": prompts, "maxLength": 50})
    assert (answer.status_code, answer.json()[1]) == (206, {"id": 2, "data": " Deep learning"})


@table(
    ("bad", "reason"),
    [
        ({"id": "far too long"}, 'the prompt is too long (id "far too long")'),
        ({"id": 7}, "the prompt is too long (id 7)"),
        ({"id": "7"}, 'the prompt is too long (id "7")'),
        ({"id": "x" * 99}, f'the prompt is too long (id "{"x" * 59}...)'),
    ],
)
@table("others", [0, 2])
def test_a_batch_with_a_prompt_that_does_not_fit_names_its_id(
    server: RunningServer, client: httpx.Client, bad: dict[str, Any], reason: str, others: int
) -> None:
    failure = CapacityError("the prompt is too long", param="prompt", num_prompt_tokens=99, max_model_len=64)
    server.service.scripts["long"] = Script(failures={0: failure})
    prompts = [{"id": f"good {number}", "prompt": "x"} for number in range(others)]
    prompts.insert(1, {**bad, "prompt": "long"})
    answer = client.post("/api/generate-batch", json={"prompts": prompts, "maxLength": 5})
    assert (answer.status_code, answer.json()) == (400, {"error": reason})


def test_what_would_meet_any_prompt_names_none(server: RunningServer, client: httpx.Client) -> None:
    server.service.script = Script(failures={0: EngineDead("the engine has stopped")})
    prompts = [{"id": number, "prompt": "x"} for number in range(2)]
    answer = client.post("/api/generate-batch", json={"prompts": prompts, "maxLength": 5})
    assert (answer.status_code, answer.json()) == (500, {"error": "the engine has stopped"})
