"""Streams on which nothing happens: what they are sent meanwhile, in every API, and that clients do not notice."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import anthropic
import httpx
import openai
import pytest

from dragoman.config.server_options import ServerSettings
from dragoman.engine.base import PromptProgress
from dragoman.server import responder
from dragoman.server.app import ServerConfig
from dragoman.server.http.fields import Switches
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
    messages: Any = [{"role": "user", "content": "Say it"}]
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0) as official,
        anthropic.Anthropic(base_url=server.url, api_key="key", max_retries=0) as other,
        asked(server, STREAMING_CHAT) as witness,
    ):
        chat: Any = official.chat.completions.create(model="fake", messages=messages, stream=True)
        response = official.responses.create(model="fake", input="Say it", stream=True)
        with other.messages.stream(model="fake", messages=messages, max_tokens=50) as message:
            server.service.journal.wait_for(lambda lines: num_paused(lines[num_lines:]) == 4)
            pulses(witness, 3, COMMENT)
            gate.open()
            assert "".join(message.text_stream) == TEXT
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chat) == TEXT
        deltas = [event.delta for event in response if event.type == "response.output_text.delta"]
        assert "".join(deltas) == TEXT


def told(num_read: int, num_ahead: int = 0) -> PromptProgress:
    return PromptProgress(8, 2, num_read, 1.5, num_read > 0, num_ahead, 3.25)


class Telling(AtOnce):
    """A service that tells how far a prompt is: one stage after the other, each time it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = [None, told(0, 2), told(0, 2), told(4), told(6)]

    def progress(self, request_id: str) -> PromptProgress | None:
        """The next stage, the last for ever."""
        return self.stages.pop(0) if len(self.stages) > 1 else self.stages[0]


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    monkeypatch.setattr(responder, "PROGRESS_S", SILENT_S)
    server = RunningServer(dialects=dialects_of(fake_profile(tells_progress=True)))
    server.service = Telling()
    server.start()
    yield server
    server.http.stop()
    server.join()


STAGES = [
    {"total": 8, "cache": 2, "processed": read, "time_ms": 1500, "ahead": ahead, "expected_ms": 3250}
    for read, ahead in ((0, 2), (4, 0), (6, 0))
]


@table("api", ["chat", "completions"])
def test_streams_tell_those_who_ask_how_far_their_prompt_is(telling: RunningServer, api: str) -> None:
    gate = Gate()
    assert isinstance(telling.service, Telling)
    telling.service.__init__()  # type: ignore[misc]
    telling.service.script = Script(gates={0: gate})
    with openai.OpenAI(base_url=f"{telling.url}/v1", api_key="key", max_retries=0) as official:
        more: Any = {"extra_body": {"return_progress": True}, "stream": True, "model": "fake"}
        if api == "chat":
            messages: Any = [{"role": "user", "content": "Say it"}]
            stream: Any = official.chat.completions.create(messages=messages, **more)
        else:
            stream = official.completions.create(prompt="Say it", **more)
        stages: list[Any] = []
        text = ""
        for chunk in stream:
            stages += [stage] if (stage := getattr(chunk, "prompt_progress", None)) else []
            text += (chunk.choices[0].delta.content if api == "chat" else chunk.choices[0].text) or ""
            if len(stages) == len(STAGES):
                gate.open()
    assert stages == STAGES
    assert text == TEXT


def test_progress_is_named_where_nobody_tells_it(server: RunningServer, telling: RunningServer) -> None:
    body = {"model": "fake", "prompt": "Say it", "return_progress": True}
    for one, stream, is_named in ((server, True, True), (telling, False, True), (telling, True, False)):
        answer = httpx.post(f"{one.url}/v1/completions", json=body | {"stream": stream})
        assert answer.status_code == 200
        assert ("return_progress" in answer.headers.get("x-dragoman-ignored", "")) is is_named


def test_nothing_is_sent_that_was_not_asked_for_where_keep_alives_are_off() -> None:
    """Twice as long as another server takes for four of them. They are off by default: some clients fail at comments."""
    gate, quiet = Gate(), serving(ServerSettings().keep_alive_seconds)
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
