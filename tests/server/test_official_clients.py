"""OpenAI's client over real HTTP: headers, retries, error classes; and streams that arrive piece by piece."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterator

import openai
import pytest

from dragoman.errors import EngineDead, EngineFailed, Overloaded, ServerError
from dragoman.server.app import ServerConfig
from dragoman.types import GenerationEvent, GenerationRequest
from tests.support.fake_service import FakeService, Gate, Script
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, post_bytes, read_to_end, read_until, running_server
from tests.support.tables import table

MESSAGES = [{"role": "user", "content": "Say it"}]
TEXT = " Deep learning is fun. 🍊"


class FailingService(FakeService):
    """Fails the first calls with the given errors, then generates."""

    def __init__(self, errors: list[ServerError]) -> None:
        super().__init__()
        self.errors = errors

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """The scripted events, once no error is left."""
        if self.errors:
            self.journal.write(f"fail {request.request_id}")
            raise self.errors.pop(0)
        async for event in super().stream(request):
            yield event


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    with running_server(dialects=real_dialects()) as server:
        yield server


@pytest.fixture
def official(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0) as client:
        yield client


@pytest.fixture
def failing_server() -> Iterator[RunningServer]:
    server = RunningServer(dialects=real_dialects())
    server.service = FailingService([])
    server.start()
    yield server
    server.http.stop()
    server.join()


@table("error", [EngineDead("the engine restarts"), Overloaded("the queue is full")], ids=lambda error: error.kind)
@table("is_stream", [False, True])
def test_the_client_succeeds_after_two_retries(
    error: ServerError, is_stream: bool, failing_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(failing_server.service, FailingService)
    failing_server.service.errors = [error, error]
    num_lines = len(failing_server.service.journal.lines)
    waits_s: list[float] = []
    monkeypatch.setattr(time, "sleep", waits_s.append)  # the client waits between its calls
    with openai.OpenAI(base_url=f"{failing_server.url}/v1", api_key="key", max_retries=2) as client:
        if is_stream:
            chunks = list(client.completions.create(model="fake", prompt="a", stream=True))
            text = "".join(chunk.choices[0].text for chunk in chunks)
        else:
            text = client.completions.create(model="fake", prompt="a").choices[0].text
    assert text == TEXT
    kinds = [line.split()[0] for line in failing_server.service.journal.lines[num_lines:]]
    assert kinds == ["fail", "fail", "start", "end"]
    assert len(waits_s) == 2
    assert isinstance(error, EngineDead) or waits_s == [1.0, 1.0]  # as the answer says


def test_raw_answers_show_the_request_id_and_what_had_no_effect(official: openai.OpenAI) -> None:
    raw = official.chat.completions.with_raw_response.create(
        model="fake",
        messages=MESSAGES,  # type: ignore[arg-type]
        user="somebody",
        extra_headers={"x-request-id": "mine"},
    )
    assert raw.headers["x-request-id"] == "mine"
    assert raw.headers["x-dragoman-ignored"] == "user"
    answer = raw.parse()
    assert answer.choices[0].message.content == TEXT
    assert answer._request_id == "mine"


@table("num_choices", [1, 3])
def test_choices_and_log_probabilities_are_the_same_streamed_as_whole(
    num_choices: int, official: openai.OpenAI
) -> None:
    whole = official.completions.create(model="fake", prompt="a", n=num_choices, logprobs=2, max_tokens=50)
    texts = dict.fromkeys(range(num_choices), "")
    values: dict[int, list[float | None]] = {index: [] for index in texts}
    for chunk in official.completions.create(
        model="fake", prompt="a", n=num_choices, logprobs=2, max_tokens=50, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.logprobs is not None:
                values[choice.index] += choice.logprobs.token_logprobs or []
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert values == {
        choice.index: choice.logprobs.token_logprobs for choice in whole.choices if choice.logprobs is not None
    }


@table(
    ("failure", "expected"),
    [(EngineFailed("broke"), openai.InternalServerError), (Overloaded("full"), openai.RateLimitError)],
    ids=["engine_failed", "overloaded"],
)
def test_failures_raise_the_clients_own_classes(
    failure: ServerError, expected: type[openai.APIStatusError], server: RunningServer, official: openai.OpenAI
) -> None:
    server.service.script = Script(failures={0: failure})
    with pytest.raises(expected, match=failure.message):
        official.chat.completions.create(model="fake", messages=MESSAGES)  # type: ignore[arg-type]


def test_a_failure_inside_a_stream_raises_after_the_first_chunks(
    server: RunningServer, official: openai.OpenAI
) -> None:
    gate = Gate()
    server.service.script = Script(gates={2: gate}, failures={2: EngineFailed("broke")})
    stream = official.completions.create(model="fake", prompt="a", stream=True)
    assert [next(stream).choices[0].text for _ in range(2)] == [" Deep", " learning"]
    gate.open()
    with pytest.raises(openai.APIError, match="broke"):
        next(stream)


def test_a_wrong_key_and_an_unknown_model_raise_the_clients_own_classes() -> None:
    config = ServerConfig(api_keys=frozenset({"right"}))
    with running_server(config, dialects=real_dialects()) as guarded:
        stranger = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0)
        with stranger, pytest.raises(openai.AuthenticationError):
            stranger.completions.create(model="fake", prompt="a")
        with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="right", max_retries=0) as client:
            assert client.completions.create(model="fake", prompt="a").choices[0].text == TEXT
            with pytest.raises(openai.NotFoundError):
                client.completions.create(model="other", prompt="a")


STREAMS = [
    ("/invocations", {"inputs": "a", "stream": True, "parameters": {"max_new_tokens": 50}}),
    ("/v1/completions", {"prompt": "a", "stream": True, "max_tokens": 50}),
    ("/v3/completions", {"model": "fake", "prompt": "a", "stream": True}),
    ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}),
    ("/v3/chat/completions", {"model": "fake", "messages": MESSAGES, "stream": True}),
    ("/generate_stream", {"inputs": "a"}),
    ("/api/generate-one", {"id": 1, "prompt": "a", "maxLength": 50}),
]


@table(("path", "body"), STREAMS, ids=[path for path, _ in STREAMS])
def test_a_stream_arrives_while_the_generation_still_runs(
    path: str, body: dict[str, object], server: RunningServer
) -> None:
    gate = Gate()
    server.service.script = Script(gates={3: gate})
    with server.connect() as connection:
        connection.sendall(post_bytes(path, json.dumps(body).encode(), "connection: close"))
        early = read_until(connection, b" Deep")
        assert b"fun" not in early
        server.service.journal.wait_for(lambda lines: lines[-1].startswith("pause"))
        gate.open()
        assert b"fun" in read_to_end(connection)
