"""The server deployment's ASGI application, with its replicas in this process; needs no Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from dragoman.engine.base import MAX_ATTEMPTS, Engine, EngineTools, MemoryNeeds
from dragoman.engine.factory import BuiltEngine, EngineSetup
from dragoman.engine.rolling import factory as rolling
from dragoman.engine.spread import Replies, SpreadEngine
from dragoman.ray.arguments import read_application
from dragoman.ray.front import Front
from dragoman.server.http.exchange import Message
from dragoman.types import EngineRequest
from tests.support.near_replicas import NearReplies

PATIENCE_S = 60.0


@dataclass
class NearFactory:
    """An engine factory as Ray's, with one rolling engine as the replica. `on_send` sees every request that is sent."""

    engine: Engine | None = None
    sent: list[NearReplies] = field(default_factory=list)
    on_send: Callable[[NearReplies], None] = lambda replies: None

    def needs(self, setup: EngineSetup) -> MemoryNeeds:
        return MemoryNeeds(0)

    def load(self, setup: EngineSetup) -> NearFactory:
        self._loaded = rolling.factory.load(setup)
        return self

    def build(self, tools: EngineTools, memory_bytes: int) -> BuiltEngine:
        self.engine = self._loaded.build(tools, memory_bytes).engine
        return BuiltEngine(SpreadEngine(self.engine.capabilities, self._send))

    def _send(self, request: EngineRequest, avoided: tuple[str, ...]) -> Replies:
        assert self.engine is not None
        replies = NearReplies(self.engine, request, "near")
        self.sent.append(replies)
        self.on_send(replies)
        return replies


factory = NearFactory()


@asynccontextmanager
async def front() -> AsyncIterator[Front]:
    """The application, started by lifespan messages as Serve does it, and ended so."""
    factory.sent, factory.on_send = [], lambda replies: None
    app = Front(read_application({"dtype": "f32", "kv_cache_gb": 0.0625}, {}), f"{__name__}:factory")
    orders: asyncio.Queue[Message] = asyncio.Queue()
    told: asyncio.Queue[Message] = asyncio.Queue()
    life = asyncio.create_task(app({"type": "lifespan"}, orders.get, told.put))
    orders.put_nowait({"type": "lifespan.startup"})
    assert (await told.get())["type"] == "lifespan.startup.complete"
    assert factory.engine is not None
    await factory.engine.start()
    try:
        yield app
    finally:
        orders.put_nowait({"type": "lifespan.shutdown"})
        assert (await told.get())["type"] == "lifespan.shutdown.complete"
        await life
        await factory.engine.shutdown(0.0)


async def post(
    app: Front, path: str, body: object, on_chunk: Callable[[], None] = lambda: None
) -> tuple[Message, bytes]:
    """The head and the body of the answer; `on_chunk` is called for each piece that is not the last."""
    content = json.dumps(body).encode()
    halves = [content[:5], content[5:]]
    inbox: list[Message] = [{"type": "http.request", "body": half, "more_body": half is halves[0]} for half in halves]
    sent: list[Message] = []

    async def receive() -> Message:
        if inbox:
            return inbox.pop(0)
        await asyncio.Event().wait()
        raise AssertionError("the client left")

    async def send(message: Message) -> None:
        sent.append(message)
        if message.get("more_body"):
            on_chunk()

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"x-request-id", b"mine")],
    }
    await asyncio.wait_for(app(scope, receive, send), PATIENCE_S)
    assert [one["type"] for one in sent].count("http.response.start") == 1
    return sent[0], b"".join(one.get("body", b"") for one in sent)


async def lose_when_begun(replies: NearReplies, count: int) -> None:
    """Lose the replica once it has sent its first output, and before anybody could have read all."""
    await replies.began.wait()
    if len(factory.sent) <= count:
        replies.lose()


QUESTION = {"model": "demo", "prompt": "What is deep learning?", "max_tokens": 24, "temperature": 0}


@pytest.mark.parametrize("num_losses", [1, MAX_ATTEMPTS - 1])
def test_a_whole_answer_survives_replicas_that_are_lost_while_they_compute_it(num_losses: int) -> None:
    async def test() -> None:
        tasks = []
        async with front() as app:
            expected = json.loads((await post(app, "/v3/completions", QUESTION))[1])["choices"]
            factory.sent.clear()
            factory.on_send = lambda one: tasks.append(asyncio.create_task(lose_when_begun(one, num_losses)))
            head, body = await post(app, "/v3/completions", QUESTION)
            assert head["status"] == 200
            assert json.loads(body)["choices"] == expected
            assert len(factory.sent) == num_losses + 1

    asyncio.run(test())


def test_a_request_that_loses_every_replica_is_answered_with_an_error() -> None:
    async def test() -> None:
        tasks = []
        async with front() as app:
            factory.on_send = lambda one: tasks.append(asyncio.create_task(lose_when_begun(one, 100)))
            head, body = await post(app, "/v3/completions", QUESTION)
            assert head["status"] == 500
            assert "lost" in body.decode()
            assert len(factory.sent) == MAX_ATTEMPTS

    asyncio.run(test())


@pytest.mark.parametrize(
    ("path", "body", "is_error"),
    [
        (
            "/v3/completions",
            {**QUESTION, "stream": True},
            lambda last: "error" in json.loads(last.removeprefix("data: ")),
        ),
        (
            "/invocations",
            {"inputs": "What is deep learning?", "parameters": {"max_new_tokens": 24}, "stream": True},
            lambda last: json.loads(last)["code"] >= 400,
        ),
    ],
)
def test_a_stream_that_has_begun_ends_with_the_error_of_its_api(
    path: str, body: object, is_error: Callable[[str], bool]
) -> None:
    async def test() -> None:
        async with front() as app:
            head, answer = await post(app, path, body, lambda: factory.sent[0].lose())  # noqa: PLW0108  (nothing was sent yet)
            assert head["status"] == 200
            lines = [line for line in answer.decode().splitlines() if line and line != "data: [DONE]"]
            assert len(lines) > 1
            assert is_error(lines[-1])
            assert len(factory.sent) == 1

    asyncio.run(test())


def test_errors_of_the_request_are_answered_at_once() -> None:
    async def test() -> None:
        async with front() as app:
            head, _ = await post(app, "/v3/completions", {**QUESTION, "temperature": -1})
            assert head["status"] == 400
            assert factory.sent == []

    asyncio.run(test())


def test_the_proxy_alone_writes_the_requests_id() -> None:
    async def test() -> None:
        async with front() as app:
            head, _ = await post(app, "/v3/completions", QUESTION)
            assert b"x-request-id" not in dict(head["headers"])

    asyncio.run(test())


def test_a_model_that_cannot_be_loaded_fails_the_start() -> None:
    async def test() -> None:
        app = Front(read_application({"dtype": "f32"}, {}), "no_such_module:factory")
        orders: asyncio.Queue[Message] = asyncio.Queue()
        told: asyncio.Queue[Message] = asyncio.Queue()
        orders.put_nowait({"type": "lifespan.startup"})
        await app({"type": "lifespan"}, orders.get, told.put)
        message = told.get_nowait()
        assert message["type"] == "lifespan.startup.failed"
        assert "no_such_module" in message["message"]

    asyncio.run(test())
