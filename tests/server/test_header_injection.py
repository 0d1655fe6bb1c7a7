"""Names that clients choose come back in headers and logs without ending a line, however long and strange they are."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import httpx
import pytest

from dragoman.logs import OperatorFormatter
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, post_bytes, read_to_end, running_server
from tests.support.tables import table

EVIL = (
    "a\r\nx-evil: 1",
    "a\nx-evil: 1",
    "a\rx-evil: 1",
    "\x00",
    "\x1b[2J",
    "\x7f",
    "é\u2028x-evil: 1",
    "x" * 10_000,
    "\x85",
)
BODY = b'{"model": "fake", "prompt": "Hi"}'
MOST_HEAD_BYTES = 8192


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    with running_server(dialects=real_dialects(), has_hosting=True) as server:
        yield server


def heads(answer: httpx.Response) -> str:
    """The header of an answer; fails unless it is one that a client can trust."""
    assert "x-evil" not in answer.headers
    text = "".join(f"{name}: {value}\n" for name, value in answer.headers.items())
    assert len(text) < MOST_HEAD_BYTES
    assert not any(ord(letter) < 32 or ord(letter) == 127 for letter in text.replace("\n", ""))
    return text


@table("name", EVIL, ids=ascii)
def test_names_in_bodies_and_paths_stay_on_their_line(name: str, client: httpx.Client) -> None:
    for body in (
        {"model": "fake", "prompt": "Hi", name: 1},
        {"model": name, "prompt": "Hi"},
        {"model": "fake", "prompt": "Hi", "adapter": name, "user": name},
        {"inputs": "Hi", "parameters": {name: 1}},
    ):
        for path in ("/v1/completions", "/v3/completions", "/invocations", "/generate"):
            assert heads(client.post(path, json=body))
    for path in ("/models/{}", "/v1/models/{}", "/predictions/{}", "/cancel/{}", "/endpoints/{}/invocations", "/{}"):
        target = path.format("".join(f"%{byte:02x}" for byte in name[:2000].encode()))
        assert heads(client.get(target))
        assert heads(client.post(target, json={"inputs": "Hi"}))
    assert heads(client.post("/models", json={"model_name": name, "url": name}))


@table("field", ["x-request-id", "x-amzn-sagemaker-inference-id"])
@table("value", [b"\x1b[2J", b"a\x00b", b"a\rx-evil: 1", b"a\x7f", b"\xff\x80", b"a\tb", b"x" * 10_000, b""])
def test_an_id_of_a_client_is_echoed_harmless_or_not_at_all(server: RunningServer, field: str, value: bytes) -> None:
    head, _, body = post_bytes("/v1/completions", BODY, "content-type: application/json").partition(b"\r\n\r\n")
    with server.connect() as connection:
        connection.sendall(head + f"\r\n{field}: ".encode() + value + b"\r\nconnection: close\r\n\r\n" + body)
        answer = read_to_end(connection)
    lines = answer.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert lines[0] in (b"HTTP/1.1 200 OK", b"HTTP/1.1 400 Bad Request")
    assert not any(line.lower().startswith(b"x-evil") for line in lines)
    assert not any(byte in line for line in lines for byte in b"\x00\x1b\x7f\r\n")
    assert sum(map(len, lines)) < MOST_HEAD_BYTES


@table("name", EVIL, ids=ascii)
def test_a_line_of_the_log_is_one_line(name: str) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OperatorFormatter())
    logger = logging.Logger("dragoman.server")  # not the process's
    logger.addHandler(handler)
    logger.error("request %s to %s failed", name, f"/models/{name}")
    text = stream.getvalue()
    assert text.endswith("failed\n")
    assert len(text.splitlines()) == 1
    assert text[:-1].isprintable()
