"""Fixed pieces of work for the server: streamed calls through the ASGI application, over a real engine on its thread.

Does: send calls, keep the streams and the engine in lock step, count the event loop's instructions and the engine's.
Does not: judge the numbers (the tests do), nor go through sockets: what uvicorn does is not ours.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.server.admission import Admission
from dragoman.server.apis.text import TextDialect
from dragoman.server.app import App, ServerConfig, build_app
from dragoman.server.generation.service import Service
from dragoman.server.http.exchange import Message
from dragoman.server.registry import ModelRegistry, ServedModel
from dragoman.server.run import loop_factory
from dragoman.tokenizer.chat_template import ChatTemplate
from tests.performance.counter import InstructionCounter
from tests.performance.counts import Counts
from tests.performance.runners import LockStepRunner
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.patience import PATIENCE_S
from tests.support.real_dialects import real_dialects

TEMPLATE = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me of the sea."}]
PROMPT = "Tell me of the sea."

NUM_SKIPPED = 8  # tokens before and after those that are counted: all streams run, none ends
MAX_STREAMS = 64

Body = Callable[[int], dict[str, Any]]
"""Number of tokens -> the body of a streamed call that answers with so many."""


@dataclass(frozen=True)
class Client:
    """One dialect as a client uses it. `target`: path and query."""

    target: str
    body: Body


CLIENTS: Mapping[str, Client] = {
    "OpenAI chat": Client(
        "/v1/chat/completions",
        lambda size: {
            "model": "fake",
            "messages": MESSAGES,
            "stream": True,
            "seed": 7,
            "max_tokens": size,
            "stream_options": {"include_usage": True},
        },
    ),
    "OpenAI chat, 5 log-probabilities": Client(
        "/v1/chat/completions",
        lambda size: {
            "model": "fake",
            "messages": MESSAGES,
            "stream": True,
            "seed": 7,
            "max_completion_tokens": size,
            "logprobs": True,
            "top_logprobs": 5,
        },
    ),
    "LMI chat": Client(
        "/invocations", lambda size: {"messages": MESSAGES, "stream": True, "max_tokens": size, "temperature": 0}
    ),
    "/v3 completions": Client(
        "/v3/completions", lambda size: {"model": "fake", "prompt": PROMPT, "stream": True, "max_tokens": size}
    ),
    "LMI": Client(
        "/invocations", lambda size: {"inputs": PROMPT, "parameters": {"max_new_tokens": size}, "stream": True}
    ),
    "LMI, stop string": Client(
        "/invocations",
        lambda size: {"inputs": PROMPT, "parameters": {"max_new_tokens": size, "stop": ["The End"]}, "stream": True},
    ),
    "TGI": Client("/generate_stream", lambda size: {"inputs": PROMPT, "parameters": {"max_new_tokens": size}}),
    "text": Client("/api/generate-one", lambda size: {"id": 7, "prompt": PROMPT, "maxLength": size}),
}


@dataclass
class HttpCosts:
    """What streaming cost on the event loop, and what crossed between the threads.

    `loop`: the event loop's instructions from the calls to the ends of their answers; `engine`: those of the engine's
    thread, if it was counted. `num_hops`: calls from the engine thread into the event loop.
    """

    num_streams: int
    num_tokens: int
    num_hops: int = 0
    num_forwards: int = 0
    marks: dict[int, int] = field(default_factory=dict)  # by forward: the loop's total when its outputs were sent
    loop: Counts = field(default_factory=lambda: Counts({}))
    engine: Counts = field(default_factory=lambda: Counts({}))

    @property
    def first(self) -> int:
        """Instructions on the event loop until the first step's outputs were sent."""
        return self.marks[0]

    @property
    def per_token(self) -> float:
        """Instructions on the event loop for one more token of one stream."""
        begin, end = NUM_SKIPPED, self.num_tokens - NUM_SKIPPED
        return (self.marks[end] - self.marks[begin]) / (end - begin) / self.num_streams


class HttpRun:
    """One counted run: `num_streams` calls of the same client at once. Counting the engine's thread too takes longer."""

    def __init__(self, client: Client, num_streams: int, num_tokens: int, *, counts_engine: bool = False) -> None:
        self._client = client
        self._costs = HttpCosts(num_streams, num_tokens)
        self._loop, self._thread = InstructionCounter(), InstructionCounter()
        self._num_begun = 0
        self._num_hops = 0
        self._counts_engine = counts_engine
        self._runner = LockStepRunner(self._mark_step)
        config = RollingConfig(max_num_seqs=MAX_STREAMS, max_slowdown=0)  # paced by no clock
        self._engine = RollingEngine(self._runner, Sampler(self._runner.vocab_size), config)

    def run(self) -> HttpCosts:
        """The costs. Raises: AssertionError if an answer is not as long as it was asked for."""
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._run())
        return self._costs

    async def _run(self) -> None:
        app = self._app()
        costs = self._costs
        self._count_hops(asyncio.get_running_loop())
        with self._thread.watch_new_threads() if self._counts_engine else nullcontext():
            await self._engine.start()
            calls = [asyncio.ensure_future(self._call(app)) for _ in range(costs.num_streams)]
            async with asyncio.timeout(60):  # against a hang: nothing is measured by it
                with self._loop.watch():
                    bodies = await asyncio.gather(*calls)
        costs.num_forwards = len(self._runner.forwards)
        costs.num_hops = self._num_hops  # shutting down takes some more
        await self._engine.shutdown(PATIENCE_S)
        await app.aclose()
        costs.loop, costs.engine = self._loop.counts(), self._thread.counts()
        assert all(bodies), "an answer is empty"
        assert self._engine.stats().num_generated_tokens == costs.num_streams * costs.num_tokens

    def _app(self) -> App:
        dialects = {**real_dialects(), "text": TextDialect(hold_ms=0)}  # no timer decides when it sends
        registry = ModelRegistry(dialects, ["fake"])
        service = Service(
            name="fake",
            engine=self._engine,
            tokenizer=ByteTokenizer(),
            chat_template=ChatTemplate(TEMPLATE, is_vouched=True),
        )
        registry.add(ServedModel("fake", service, self._engine, dialects, Admission("fake", max_running=MAX_STREAMS)))
        registry.mark_ready()
        return build_app(registry, ServerConfig())

    async def _call(self, app: App) -> bytes:
        """The body of one call's answer."""
        pieces: list[bytes] = []
        request = [self._request_message()]

        async def receive() -> Message:
            if request:
                return request.pop()
            # The second time it is asked whether the client has gone: by then the request is in the engine's inbox.
            self._num_begun += 1
            if self._num_begun == self._costs.num_streams:
                self._runner.begin()
            await asyncio.Event().wait()  # the client stays
            raise AssertionError("an event that is never set was set")

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                assert message["status"] in (200, 206), message
            elif message["body"]:
                pieces.append(message["body"])
                self._runner.note_sent()

        await app(self._scope(), receive, send)
        return b"".join(pieces)

    def _mark_step(self, number: int) -> None:
        self._costs.marks[number] = self._loop.total

    def _count_hops(self, loop: asyncio.AbstractEventLoop) -> None:
        original = loop.call_soon_threadsafe

        def call_soon_threadsafe(*args: Any, **kwargs: Any) -> asyncio.Handle:
            self._num_hops += 1
            return original(*args, **kwargs)

        loop.call_soon_threadsafe = call_soon_threadsafe  # type: ignore[assignment, method-assign]

    def _request_message(self) -> Message:
        body = json.dumps(self._client.body(self._costs.num_tokens)).encode()
        return {"type": "http.request", "body": body, "more_body": False}

    def _scope(self) -> dict[str, Any]:
        target = urlsplit(self._client.target)
        headers = [(b"host", b"test"), (b"content-type", b"application/json"), (b"user-agent", b"python-httpx/0.28")]
        return {
            "type": "http",
            "method": "POST",
            "path": target.path,
            "query_string": target.query.encode(),
            "headers": headers,
            "extensions": {},
        }


def count_stream(client: str, num_streams: int = 1, num_tokens: int = 64, *, counts_engine: bool = False) -> HttpCosts:
    """The costs of `num_streams` calls of CLIENTS[client] at once, after a short one so that nothing is done first."""
    HttpRun(CLIENTS[client], 1, 2 * NUM_SKIPPED).run()
    return HttpRun(CLIENTS[client], num_streams, num_tokens, counts_engine=counts_engine).run()
