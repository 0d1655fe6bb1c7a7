"""A whole server in one event loop, without a port: all client APIs, the real service and engine, and a model of letters.

Calls go straight into the ASGI application, so that a test decides when a client leaves, and what fails below. Everything
below the engine is exact, so an answer that was disturbed differs from one that was not.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from dragoman.engine.base import EngineTools, Take
from dragoman.engine.factory import BuiltEngine
from dragoman.engine.renewable import RenewableEngine
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.pictures import PictureEmbedder
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.grammar.compiler import GrammarCompiler
from dragoman.grammar.masker import Vocabulary
from dragoman.server import apis
from dragoman.server.admission import Admission
from dragoman.server.api import Call, Dialect, ModelProfile
from dragoman.server.app import App, ServerConfig, build_app
from dragoman.server.generation.extensions import Extensions
from dragoman.server.generation.output_parsers import OutputFormat
from dragoman.server.generation.pictures import PicturePrompts
from dragoman.server.generation.prepare import ServiceLimits
from dragoman.server.generation.service import Service
from dragoman.server.http.protocol import CUT_EXTENSION
from dragoman.server.registry import ModelRegistry, ServedModel
from dragoman.tokenizer.answer_watch import watch_answer
from dragoman.tokenizer.base import Tokenizer, TokenPieces
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.tokenizer.stop_strings import StopOnTokens
from dragoman.types import EngineRequest
from tests.engine.fake_runner import FakeRunner, Logits
from tests.engine.naive import make_request
from tests.support.byte_tokenizer import EOS_ID, VOCAB_SIZE, ByteTokenizer
from tests.support.every_api import APIS, NAMES_WITH_TOY, Calling, callings, dialects_of, name_of_dialect
from tests.support.patience import PATIENCE_S
from tests.support.real_dialects import fake_profile

SETTLING_STEPS = 2
PROFILE = fake_profile()
DIALECTS = dialects_of(PROFILE)
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
_LETTERS = range(ord("a"), ord("z") + 1)

Message = dict[str, Any]


class LetterRunner(FakeRunner):
    """A fake runner whose tokens are bytes, of which it writes small letters alone: answers end with their length."""

    def __init__(self, **options: Any) -> None:
        super().__init__(vocab_size=len(_LETTERS), **options)
        self.vocab_size = VOCAB_SIZE
        self.batches: list[int] = []  # how many sequences each forward had

    def forward(self, batch: ForwardBatch) -> Logits:
        """Logits of the wanted rows."""
        self.batches.append(len(batch.past_lens))
        self.vocab_size = len(_LETTERS)
        try:
            letters = super().forward(batch)
        finally:
            self.vocab_size = VOCAB_SIZE
        logits = np.full((len(letters), VOCAB_SIZE), -1e9, dtype=np.float32)
        logits[:, _LETTERS.start : _LETTERS.stop] = letters
        return logits


def byte_tools(tokenizer: Tokenizer | None = None, max_mask_s: float = 10.0) -> EngineTools:
    """The grammar compiler and the watcher of stop strings for bytes."""
    pieces = TokenPieces(tokenizer or ByteTokenizer())
    tokens = [pieces[token_id].bytes for token_id in range(VOCAB_SIZE)]
    compiler = GrammarCompiler(Vocabulary(tokens, frozenset({EOS_ID}), EOS_ID), max_mask_s)

    return EngineTools(compiler.compile, partial(StopOnTokens, pieces), watch_answer=partial(watch_answer, pieces))


@dataclass
class Parts:
    """What a server is made of, for tests to put faults in. `dialects`: in the places of the usual ones."""

    runner: LetterRunner = field(default_factory=LetterRunner)
    sampler: Sampler = field(default_factory=lambda: Sampler(VOCAB_SIZE))
    tokenizer: Tokenizer = field(default_factory=ByteTokenizer)
    template: ChatTemplate = field(default_factory=lambda: ChatTemplate(TEMPLATE, is_vouched=True))
    tools: EngineTools = field(default_factory=byte_tools)
    config: RollingConfig = field(default_factory=RollingConfig)
    drain_s: float = 0.0
    dialects: Mapping[str, Dialect] = field(default_factory=dict)
    pictures: PicturePrompts | None = None
    embedder: PictureEmbedder | None = None
    output: OutputFormat | None = None
    limits: ServiceLimits | None = None


class WatchedEngine(RenewableEngine):
    """An engine that knows how many requests it got, and of how many of these somebody still takes the outputs."""

    def __init__(self, built: BuiltEngine) -> None:
        super().__init__(built)
        self.num_requests = self.num_open = 0

    async def deliver(self, request: EngineRequest, take: Take) -> None:
        """See `base.deliver`."""
        with self._counted():
            await super().deliver(request, take)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.num_requests += 1
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1


def _extensions(parts: Parts) -> Extensions:
    found = Extensions(parts.tools.compile_grammar, pictures=parts.pictures, draw_seed=lambda: 7)
    output = parts.output
    if output is None:
        return found
    return replace(
        found,
        make_parser=output.parser,
        constrain=output.constraint,
        find_thought=output.thought_marks if output.reasoning else None,
    )


def _profile(parts: Parts) -> ModelProfile:
    thinks = parts.output is not None and parts.output.reasoning is not None
    if parts.limits is not None and parts.limits.shifts_context:
        return replace(PROFILE, shifts_context=True, max_model_len=parts.runner.max_model_len)
    return replace(PROFILE, abilities=PROFILE.abilities | {"thinking"}) if thinks else PROFILE


class SmallServer:
    """The application over one model that is called `fake`."""

    def __init__(self, parts: Parts) -> None:
        self.runner = parts.runner
        self._parts = parts
        self.engine = WatchedEngine(BuiltEngine(self.make_engine(parts.runner)))
        service = Service(
            name="fake",
            engine=self.engine,
            tokenizer=parts.tokenizer,
            chat_template=parts.template,
            limits=parts.limits,
            extensions=_extensions(parts),
        )
        dialects = {**dialects_of(_profile(parts)), **parts.dialects}
        self.admission = Admission("fake")
        self.registry = ModelRegistry(dialects, profile=PROFILE)
        self.registry.add(ServedModel("fake", service, self.engine, dialects, self.admission))
        self.registry.mark_ready()
        self.app: App = build_app(self.registry, ServerConfig())

    def make_engine(self, runner: LetterRunner) -> RollingEngine:
        """Another engine like this server's."""
        parts = self._parts
        return RollingEngine(runner, parts.sampler, parts.config, tools=parts.tools, embedder=parts.embedder)

    def call(
        self, calling: Calling | str, body: Any = None, *headers: tuple[str, str], method: str = "POST"
    ) -> AppCall:
        """Begin a call."""
        if isinstance(calling, Calling):
            content, path, method = calling.http.body, calling.http.path, calling.operation.method
        else:
            content, path = (b"" if body is None else json.dumps(body).encode()), calling
        return AppCall(self.app, method, path, content, headers)

    async def collect(self, request: EngineRequest) -> list[int]:
        """The tokens of a request that goes straight to the engine."""
        return [token_id async for output in self.engine.generate(request) for token_id in output.token_ids]

    async def unwanted(self) -> None:
        """Return once nobody takes outputs of the engine any more. Raises: TimeoutError if somebody goes on."""
        async with asyncio.timeout(PATIENCE_S):
            while self.engine.num_open:  # noqa: ASYNC110  # only what the loop does next changes it
                await asyncio.sleep(0)

    async def settle_engine(self) -> None:
        """The same as `settle`, of the engine alone: whoever called may still be being told."""
        num_before = len(self.runner.batches)
        await self.collect(make_request([250, 251], max_tokens=SETTLING_STEPS, ignore_eos=True))
        assert self.runner.batches[num_before:].count(1) >= SETTLING_STEPS, "something else was computed beside it"

    async def settle(self) -> None:
        """Return once nothing runs, and nobody holds anything. Raises: TimeoutError if something stays.

        A request of SETTLING_STEPS steps goes first: what the engine tells of itself is then of now, and what should have
        been gone would have been computed beside it.
        """
        await self.settle_engine()
        async with asyncio.timeout(PATIENCE_S):
            while not self.is_idle():  # noqa: ASYNC110  # the engine thread changes it
                await asyncio.sleep(0.0005)

    def is_idle(self) -> bool:
        """True if no request, sequence or block is held by anybody."""
        health = self.engine.health()
        held = (health.num_running, health.num_waiting, health.num_used_blocks, self.admission.num_in_flight)
        return not any(held) and self.admission.is_idle


class AppCall:
    """One call, running in a task of its own. `messages`: what was sent so far."""

    def __init__(self, app: App, method: str, path: str, body: bytes, headers: Sequence[tuple[str, str]]) -> None:
        self.messages: list[Message] = []
        self.first_chunk = asyncio.Event()
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self._reads = asyncio.Event()
        self._reads.set()
        raw = [("content-type", "application/json"), ("x-amzn-sagemaker-target-model", "fake"), *headers]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in raw],
            "extensions": {CUT_EXTENSION: {}},
            "http_version": "1.1",
        }
        self._coroutine: Callable[[], Awaitable[None]] = lambda: app(scope, self._receive, self._send)
        self.task = asyncio.ensure_future(self._coroutine())

    def leave(self) -> None:
        """Close the connection."""
        self._gone.set()

    def stop_reading(self) -> None:
        """Take nothing more of the answer."""
        self._reads.clear()

    def read_on(self) -> None:
        """Take the rest."""
        self._reads.set()

    async def ended(self) -> AppCall:
        """Return when the server has done with the call. Raises: what the application raised."""
        async with asyncio.timeout(PATIENCE_S):
            await self.task
        return self

    @property
    def status(self) -> int:
        """The status that was sent, 0 = none."""
        return next((one["status"] for one in self.messages if one["type"] == "http.response.start"), 0)

    @property
    def headers(self) -> dict[str, str]:
        """The answer's header fields."""
        found = next(one["headers"] for one in self.messages if one["type"] == "http.response.start")
        return {name.decode(): value.decode() for name, value in found}

    @property
    def media_type(self) -> str:
        """That of the answer."""
        return self.headers["content-type"]

    @property
    def body(self) -> bytes:
        """What was sent so far."""
        return b"".join(one["body"] for one in self.messages if one["type"] == "http.response.body")

    @property
    def is_complete(self) -> bool:
        """True if the answer was ended in order."""
        bodies = [one for one in self.messages if one["type"] == "http.response.body"]
        return bool(bodies) and not bodies[-1]["more_body"]

    @property
    def is_cut(self) -> bool:
        """True if the connection was closed to show that the answer is not whole."""
        return any(one["type"] == CUT_EXTENSION for one in self.messages)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await asyncio.sleep(0)  # a real write gives others their turn, now and then
        await self._reads.wait()
        if not self._gone.is_set():
            self.messages.append(dict(message))
            if message.get("body"):
                self.first_chunk.set()


@asynccontextmanager
async def small_server(parts: Parts | None = None) -> AsyncIterator[SmallServer]:
    """A started server; at the end nothing of it is left running."""
    server = SmallServer(parts or Parts())
    await server.engine.start()
    try:
        yield server
    finally:
        await server.app.aclose()
        await server.engine.shutdown(0.0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run an async test to its end, or fail; all APIs are served, that of the tests too."""

    async def bounded() -> None:
        async with asyncio.timeout(120):
            await test()

    with patch.object(apis, "NAMES", NAMES_WITH_TOY):
        asyncio.run(bounded())


def parsed(calling: Calling) -> Call | None:
    """What the dialect reads, None if nothing is generated: Ollama's calls without text. Raises: what the dialect does."""
    dialect, wrap = DIALECTS[name_of_dialect(calling)], calling.operation.wrap
    opening = (dialect if wrap is None else wrap(dialect)).open(calling.http)
    call = opening.parse()
    return call if opening.answer is None else None


def generating_calls() -> list[Calling]:
    """A call of every operation that generates, of every API, in each dialect that it can choose, streamed and whole."""
    found: dict[tuple[str, str, bool], Calling] = {}
    for api in APIS:
        for calling in callings(api):
            try:
                call = parsed(calling)
            except Exception:
                continue  # an example of another operation
            if call is not None:
                found.setdefault((calling.operation.path, name_of_dialect(calling), call.stream), calling)
    return list(found.values())


CALLS = generating_calls()


def of_each_encoder(calls: Sequence[Calling]) -> list[Calling]:
    """One call for each class that writes answers, streamed or whole: the first of those that `distinct` tells apart."""
    kinds: dict[tuple[type, bool], Calling] = {}
    for calling in calls:
        call = parsed(calling)
        assert call is not None
        kinds.setdefault((type(call.encoder), call.stream), calling)
    return list(kinds.values())


def distinct(calls: Sequence[Calling]) -> list[Calling]:
    """One call for each dialect, as it is wrapped, streamed or whole: routes that share these share all their code."""
    kinds = {(name_of_dialect(one), one.operation.wrap, id_of(one).rpartition(" ")[2]): one for one in calls}
    return list(kinds.values())


def length_of(body: bytes) -> int:
    """Of an answer, without how long it took."""
    return len(re.sub(rb'_duration": ?\d+|"(timings|stats)": ?\{[^}]*\}', b"", body))


def id_of(calling: Calling) -> str:
    """A name for a test's case."""
    stream = re.search(rb'"stream": (true|false)', calling.http.body)
    return f"{calling.operation.path} {name_of_dialect(calling)} {stream[1].decode() if stream else 'default'}"
