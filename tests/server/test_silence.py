"""Streams on which nothing happens: what they are sent meanwhile, in every API, and that clients do not notice."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import anthropic
import openai
import pytest

from dragoman.server.app import ServerConfig
from dragoman.server.http.switches import Switches
from dragoman.server.operations import GenerateOperation, PoolingOperation
from tests.support.every_api import APIS, dialects_of, filled
from tests.support.fake_service import FakeService, Gate, Script
from tests.support.real_dialects import fake_profile, real_dialects
from tests.support.running_server import RunningServer, post_bytes, read_until, running_server
from tests.support.tables import table

COMMENT, PING = b": keep-alive\n\n", b'event: ping\ndata: {"type":"ping"}\n\n'
TEXT = " Deep learning is fun. 🍊"
DIALECTS = dialects_of(fake_profile())
STREAMING = [
    operation
    for api in APIS[:-1]  # the last one is the tests' own
    for operation in api.operations
    if isinstance(operation, GenerateOperation)
    and not isinstance(operation, PoolingOperation)
    and isinstance(operation.example, dict)
]
SILENT_S = 0.01


class AtOnce(FakeService):
    """A service whose heads do not wait for a token."""

    head_after_s = 0.0


def serving(keep_alive_s: float) -> RunningServer:
    server = RunningServer(ServerConfig(switches=Switches(keep_alive_s=keep_alive_s)), dialects=DIALECTS)
    server.service = AtOnce()
    server.start()
    return server


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    server = serving(SILENT_S)
    yield server
    server.http.stop()
    server.http.stop()
    server.join()


def asked(server: RunningServer, operation: GenerateOperation) -> socket.socket:
    """The connection of a streaming call that was sent."""
    body = json.dumps({**operation.example, "stream": True}).encode()
    connection = server.connect()
    connection.sendall(post_bytes(filled(operation.path), body, "content-type: application/json", "connection: close"))
    return connection


def pulses(connection: socket.socket, count: int, pulse: bytes) -> bytes:
    """What comes until there were so many pulses."""
    received = b""
    while received.count(pulse) < count:
        received += read_until(connection, pulse)
    return received


def num_paused(lines: list[str]) -> int:
    """How many calls wait; those of several prompts have several requests."""
    return len({line[:42] for line in lines if line.startswith("pause ")})


def rest(connection: socket.socket) -> bytes:
    received = b""
    while piece := connection.recv(65_536):
        received += piece
    return received


@table("silent_at", [0, 2])
def test_streams_of_events_live_and_those_of_lines_have_nothing_but_lines(
    server: RunningServer, silent_at: int
) -> None:
    gate = Gate()
    server.service.script = Script(gates={silent_at: gate})
    num_lines = len(server.service.journal.lines)
    with ExitStack() as stack:
        waiting = [(one, stack.enter_context(asked(server, one))) for one in STREAMING]
        witness = stack.enter_context(asked(server, STREAMING_CHAT))
        server.service.journal.wait_for(lambda lines: num_paused(lines[num_lines:]) == len(STREAMING) + 1)
        pulses(witness, 4, COMMENT)  # by then every stream on this server has been silent for long
        gate.open()
        answers = [(operation, rest(connection)) for operation, connection in waiting]
    kinds = set()
    for operation, answer in answers:
        head, _, body = answer.partition(b"\r\n\r\n")
        is_events = b"content-type: text/event-stream" in head.lower()
        pulse = PING if operation.path == "/v1/messages" else COMMENT
        assert (pulse in body) is is_events, operation.path
        assert is_events or (COMMENT not in body and PING not in body), operation.path
        if is_events:
            events = [one for one in _chunked(body).split(b"\n\n") if one and not one.startswith(b": ")]
            assert all(b"data:" in one for one in events), operation.path
        kinds.add(is_events)
    assert kinds == {True, False}


STREAMING_CHAT = next(one for one in STREAMING if one.path == "/v3/chat/completions")


def _chunked(body: bytes) -> bytes:
    """The bytes in a chunked body."""
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        found += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return found


def test_official_clients_do_not_notice(server: RunningServer) -> None:
    gate = Gate()
    server.service.script = Script(gates=dict.fromkeys((0, 3), gate))
    num_lines = len(server.service.journal.lines)
    messages = [{"role": "user", "content": "Say it"}]
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0) as official,
        anthropic.Anthropic(base_url=server.url, api_key="key", max_retries=0) as other,
        asked(server, STREAMING_CHAT) as witness,
    ):
        chat = official.chat.completions.create(model="fake", messages=messages, stream=True)  # type: ignore[call-overload]
        response = official.responses.create(model="fake", input="Say it", stream=True)
        with other.messages.stream(model="fake", messages=messages, max_tokens=50) as message:  # type: ignore[arg-type]
            server.service.journal.wait_for(lambda lines: num_paused(lines[num_lines:]) == 4)
            pulses(witness, 3, COMMENT)
            gate.open()
            assert "".join(message.text_stream) == TEXT
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chat) == TEXT
        deltas = [event.delta for event in response if event.type == "response.output_text.delta"]
        assert "".join(deltas) == TEXT


def test_nothing_is_sent_that_was_not_asked_for_where_keep_alives_are_off() -> None:
    """Twice as long as another server takes for four of them."""
    gate, quiet = Gate(), serving(0.0)
    with running_server(ServerConfig(switches=Switches(keep_alive_s=SILENT_S)), dialects=real_dialects()) as loud:
        for server in (quiet, loud):
            server.service.script = Script(gates={2: gate})
        with asked(quiet, STREAMING_CHAT) as connection, asked(loud, STREAMING_CHAT) as other:
            quiet.service.journal.wait_for(lambda lines: any(line.startswith("pause") for line in lines))
            pulses(other, 8, COMMENT)
            gate.open()
            assert COMMENT not in rest(connection)
    quiet.http.stop()
    quiet.join()
