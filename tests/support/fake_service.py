"""A service that generates the script of `scripted`, with pauses and failures that a test decides.

Runs on the server's event loop; tests drive it from their own thread and wait on its journal, never on time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from time import perf_counter

from dragoman.engine.base import Capabilities, EngineStats, Health, Outputs
from dragoman.server.generation.prepare import PromptTokens
from dragoman.server.observation.record import RequestRecord, current_call, new_request
from dragoman.server.registry import TakeEvent
from dragoman.types import (
    EngineRequest,
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    Prompt,
    TextPrompt,
    TraceContext,
)
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.patience import PATIENCE_S
from tests.support.scripted import scripted_events, scripted_prompt, scripted_result


class Gate:
    """Holds generations back until a test opens it, from any thread."""

    def __init__(self) -> None:
        self._is_open = False
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def open(self) -> None:
        """Let everyone through, now and later."""
        with self._lock:
            self._is_open = True
            for loop, event in self._waiting:
                loop.call_soon_threadsafe(event.set)

    async def wait(self) -> None:
        """Return once the gate is open."""
        event = asyncio.Event()
        with self._lock:
            if self._is_open:
                return
            self._waiting.append((asyncio.get_running_loop(), event))
        await event.wait()


class Journal:
    """What happened to the requests, in order, readable from any thread."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._changed = threading.Condition()

    def write(self, line: str) -> None:
        """Add a line."""
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()

    @property
    def lines(self) -> list[str]:
        """The lines so far."""
        with self._changed:
            return list(self._lines)

    def wait_for(self, predicate: Callable[[list[str]], bool]) -> list[str]:
        """The lines, once `predicate` holds for them. Raises: AssertionError if that takes too long."""
        with self._changed:
            if not self._changed.wait_for(lambda: predicate(self._lines), PATIENCE_S):
                raise AssertionError(f"waited in vain; the journal says {self._lines}")
            return list(self._lines)


@dataclass(frozen=True)
class Script:
    """What happens before event number N of a request: a pause, then a failure."""

    gates: Mapping[int, Gate] = field(default_factory=dict)
    failures: Mapping[int, Exception] = field(default_factory=dict)


def note(record: RequestRecord, event: GenerationEvent) -> None:
    """An event goes out: what a real service's sequences write down."""
    sequence = record.sequences[event.index]
    sequence.event_s.append(perf_counter())
    sequence.num_tokens += len(event.tokens)
    sequence.finish_reason = event.finish_reason


class FakeService:
    """The service protocol over scripted generations. The journal has `start`, `pause`, `end` and `abort <id>`.

    `script` applies to every prompt but those with one of their own in `scripts`. Its tokens are bytes.
    """

    chat_template = None
    max_model_len = 64

    def __init__(self) -> None:
        self.tokenizer = ByteTokenizer()
        self.script = Script()
        self.scripts: dict[str, Script] = {}
        self.journal = Journal()
        self.requests: list[GenerationRequest] = []
        self.traces: list[TraceContext | None] = []  # of their calls

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """The scripted events."""
        self.requests.append(request)
        call = current_call()
        self.traces.append(None if call is None else call.trace)
        self.journal.write(f"start {request.request_id}")
        outcome = "abort"
        record = new_request(request.request_id, request.sampling.n, request.adapter)
        try:
            for position, event in enumerate(scripted_events(request)):
                await self._play(position, request)
                if event.prompt is not None:
                    record.has_prompt(event.prompt)
                note(record, event)
                yield event
            outcome = "end"
        finally:
            self.journal.write(f"{outcome} {request.request_id}")

    async def run(self, request: GenerationRequest, take: TakeEvent) -> None:
        """The scripted events, handed over."""
        async with aclosing(self.stream(request)) as events:
            async for event in events:
                take(event)

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """The scripted result, once all its events have been made."""
        async with aclosing(self.stream(request)) as events:
            async for _ in events:
                pass
        return scripted_result(request)

    async def tokenize(self, prompt: Prompt) -> PromptTokens:
        """The prompt's bytes; of a conversation, those of its turns as lines."""
        text = prompt.text if isinstance(prompt, TextPrompt) else scripted_prompt(GenerationRequest("r", prompt)).text
        return PromptTokens(text, tuple(self.tokenizer.encode(text)))

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """The bytes as text."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)

    async def _play(self, position: int, request: GenerationRequest) -> None:
        script = self.scripts.get(getattr(request.prompt, "text", ""), self.script)
        if position in script.gates:
            self.journal.write(f"pause {request.request_id}")
            await script.gates[position].wait()
        if position in script.failures:
            raise script.failures[position]


class FakeEngine:
    """An engine as far as the server looks at one."""

    def __init__(self) -> None:
        self.capabilities = Capabilities(max_model_len=64, vocab_size=1000)
        self.death = ""
        self.is_recovering = False
        self.journal = Journal()

    async def start(self) -> None:
        """Nothing to start."""

    def generate(self, request: EngineRequest) -> Outputs:
        """Never called: the fake service generates."""
        raise NotImplementedError

    def stats(self) -> EngineStats:
        """Nothing is counted."""
        return EngineStats()

    def health(self) -> Health:
        """Alive until a test writes a `death`."""
        return Health(is_alive=not self.death, reason=self.death, num_waiting=3, is_recovering=self.is_recovering)

    async def shutdown(self, drain_s: float) -> None:
        """Note that it was called."""
        self.journal.write("shutdown")
